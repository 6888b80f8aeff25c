"""Mail: archives to messages, messages to text, and messages to threads with summaries. Pure functions for stages."""
