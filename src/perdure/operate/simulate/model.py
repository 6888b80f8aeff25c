"""What is simulated: clients that call a service, its fault, and the jobs around the calls."""

from __future__ import annotations

from perdure.core.frozen import frozen


@frozen
class Model:
    """Numbers of one experiment; seconds and calls per second."""

    clients: int = 100
    rate: float = 400.0  # calls of all clients together
    capacity: float = 500.0  # requests the service can answer
    timeout_s: float = 1.0  # a client leaves after this; the service works on what it left all the same
    queue: float = (
        2.0  # timeouts' worth of work that the service lets queue at most; beyond it refuses at once
    )
    latency_s: float = 0.05  # of an answer beside queueing
    noise: float = 0.0  # share of requests that fail at any time, without any fault
    flicker: float = 0.0  # share of requests that fail in the fault, however few these are
    throttle: float = (
        0.0  # share of requests that are refused as too many in the fault, however few these are
    )
    after_s: float = 0.0  # the wait that these refusals ask for; 0: they name none
    retries: int = 4
    base_s: float = 0.1
    cap_s: float = 10.0
    fault_s: float = 30.0
    share: float = 0.3  # of the capacity that is left in the fault; 0: an outage, connections are refused
    begin_s: float = 30.0  # when the fault begins
    end_s: float = 150.0  # calls that begin until then are measured
    slots: int = 6  # jobs at a time, of each client that is a worker
    tries: int = 5  # of a job
    again_s: tuple[float, float] = (20.0, 40.0)  # a job whose call failed is tried again after this
    documents: int = 0  # jobs that are there at the beginning; 0: they arrive at `rate`
    calls: int = 1  # that each of them makes, one after the other; what succeeded is not made again
    spread: float = 0.0  # of the latency, up and down
    away_s: float | None = None  # a request to a service in an outage fails after this; None: the latency
    refuse: bool = False  # the service refuses at once what is beyond the capacity, and lets nothing queue

    @property
    def over_s(self) -> float:
        """When the fault is over."""
        return self.begin_s + self.fault_s

    def flickers(self, now_s: float) -> float:
        """The share of requests that fails now."""
        return self.flicker if self.flicker and self.begin_s <= now_s < self.over_s else 0.0

    def throttles(self, now_s: float) -> float:
        """The share of requests that is refused as too many now."""
        return self.throttle if self.throttle and self.begin_s <= now_s < self.over_s else 0.0

    def away(self, now_s: float) -> bool:
        """Whether the service answers no request now."""
        return self.share == 0 and self.begin_s <= now_s < self.over_s

    @property
    def fault(self) -> str:
        """The fault in words."""
        if self.flicker:
            return f"flicker of {self.flicker * 100:.3g} % for {self.fault_s:.3g} s"
        if self.share > 0:
            return f"brown-out to {self.share * 100:.3g} % for {self.fault_s:.3g} s"
        return f"outage of {self.fault_s:.3g} s"
