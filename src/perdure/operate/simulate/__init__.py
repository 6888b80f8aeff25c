"""The laboratory: what a retry policy does to a service in trouble, in virtual time.

model     what is simulated: clients, service, fault, and the jobs around the calls
service   a queue that goes on working for callers who have left
policy    what each client does, with the classes that real calls use
world     the events of one run
measure   what one run shows, and several seeds together
history   a model from what the store recorded
report    a table, or one JSON object
plot      a chart as SVG or PNG
"""
