"""How fast a dependency can be asked: no limit while it answers, an adaptive and bounded one while it does not.

The limit begins with signs of overload, is cut again while they last, grows while calls succeed, and gives itself up
when it no longer limits. Nobody waits longer than `max_wait_s`: who would have to is told so and sheds the call.

In a worker the fleet leads (`core.pace`): it sets the rate, and what this process sees changes nothing by itself. A
pause that the service asked for lasts as long as it asked, whoever leads.
"""

from __future__ import annotations

from threading import Lock

#: What came back is judged for two seconds at a time, anew after each change; usual is the mean of some more.
EPOCH_S, MEMORY_S = 2.0, 5.0
#: Overload: so many failures, and this share of what came back.
BAD_LEAST, BAD_SHARE = 2, 0.5
#: The rate grows while failures are at most this share.
CALM_SHARE = 0.2
#: Whatever a service asks for, it is asked again after a day.
PAUSE_S_MAX = 86_400.0
#: A limit that nothing has changed for so long, because nobody came, is forgotten.
FORGET_S = 60.0


class Limiter:
    """Turns at an even rate. All of it is a few numbers: nothing grows with the calls that wait.

    `throttled` cuts the rate down to `floor_per_s`. Failures cut it to `floor_share` of the usual demand at most:
    a service that answers less than that is away, which is the breaker's business.
    """

    __slots__ = (
        "_asked_s", "_bad", "_changed_s", "_cut_s", "_demand", "_lock", "_next_s", "_pause_s",
        "cut", "epoch_s", "floor_per_s", "floor_share", "good", "led", "max_wait_s", "on", "rate", "rise", "share",
        "spacing_s",
    )  # fmt: skip

    def __init__(
        self,
        max_wait_s: float = 1.0,
        floor_per_s: float = 0.5,
        *,
        floor_share: float = 0.25,
        cut: float = 0.6,
        rise: float = 1.5,
        spacing_s: float = 0.5,
    ) -> None:
        self.max_wait_s, self.floor_per_s, self.floor_share = max_wait_s, floor_per_s, floor_share
        self.cut, self.rise = cut, rise  # what a change leaves or makes of the rate
        self.spacing_s = spacing_s  # the least time between two changes
        self.led = False  # by the fleet
        self.share = 1.0  # of requests that is usually answered
        self._lock = Lock()
        self.reset()

    def reset(self) -> None:
        """Begin again without a limit."""
        self.on = False  # whether a request must ask: there is a limit or a pause
        self.rate: float | None = None  # requests per second; None: no limit, the normal state
        self._next_s = 0.0  # when the next turn is free
        self._pause_s = 0.0  # until when the service asked for silence
        self._asked_s = 0.0  # until when it asked calls of this process
        self._changed_s = self._cut_s = self.epoch_s = float("-inf")
        self.good = self._bad = 0  # what came back in this epoch
        self._demand = 0.0  # requests per second before the limit began

    def ask(self, now_s: float, longest_s: float | None = None) -> float:
        """Seconds to wait before sending. Up to `longest_s`, which is `max_wait_s` unless something cannot be put off,
        the turn is reserved; beyond nothing is: shed the call."""
        if not self.on:
            return 0.0
        with self._lock:
            return self._turn(now_s, self.max_wait_s if longest_s is None else longest_s)

    def succeeded(self, now_s: float) -> None:
        """A request was answered. Tell every answer, also while there is no limit: they are the usual demand."""
        if now_s - self.epoch_s >= EPOCH_S:
            self._next_epoch(now_s)
        self.good += 1
        if self.rate is not None:
            self._increase(now_s)

    def failed(self, now_s: float) -> None:
        """A request failed or timed out, as many do under overload; single failures begin no limit."""
        if now_s - self.epoch_s >= EPOCH_S:
            self._next_epoch(now_s)
        self._bad += 1
        least = BAD_LEAST / self.share**4  # where failures are usual it takes more to notice others
        if self._bad >= least and self.good <= self.share * (1 - BAD_SHARE) * (self.good + self._bad):
            self._decrease(now_s, max(self.floor_per_s, self.floor_share * self._demand))

    def throttled(self, now_s: float, hint_s: float | None = None) -> None:
        """The service asks for less; with a hint, nothing is sent for that long."""
        if now_s - self.epoch_s >= EPOCH_S:
            self._next_epoch(now_s)
        self._bad += 1
        self._decrease(now_s, self.floor_per_s)
        if hint_s is not None:
            self.pause(now_s, hint_s)

    def pause(self, now_s: float, for_s: float, heard: bool = False) -> None:
        """Send nothing for this long, because the service asked all for silence; a longer pause stays. `heard`: others
        were asked, and know of it."""
        with self._lock:
            self._pause_s = max(self._pause_s, now_s + min(for_s, PAUSE_S_MAX))
            self._asked_s = self._asked_s if heard else max(self._asked_s, self._pause_s)
            self._next_s = max(self._next_s, self._pause_s)
            self.on = True

    def pause_s(self, now_s: float) -> float:
        """Seconds of silence that the service asked for and that are left."""
        return max(0.0, self._pause_s - now_s)

    @property
    def asked_s(self) -> float:
        """Until when the service asked calls of this process for silence."""
        return self._asked_s

    def lead(self, now_s: float, rate: float | None) -> None:
        """Ask for this many requests a second, because the fleet says so; None: no limit. A pause goes on."""
        with self._lock:
            if self.rate is None:
                self._next_s = max(now_s, self._pause_s)
            self.rate = None if rate is None else max(rate, self.floor_per_s)
            self.on = self.rate is not None or self._pause_s > now_s
            self._changed(now_s)

    def _turn(self, now_s: float, longest_s: float) -> float:
        if now_s - max(self._changed_s, self._next_s) > FORGET_S:
            self.rate = None
        if self.rate is None:
            self.on = self._pause_s > now_s
            return max(0.0, self._pause_s - now_s)
        wait_s = max(0.0, self._next_s - now_s)
        if wait_s <= longest_s:
            self._next_s = now_s + wait_s + 1 / self.rate
        return wait_s

    def _increase(self, now_s: float) -> None:
        with self._lock:
            calm = self._bad <= CALM_SHARE * (self.good + self._bad)
            if self.rate is None or self.led or not calm or now_s - self._changed_s < self.spacing_s:
                return
            self.rate *= self.rise
            self._changed(now_s)
            if self.rate > 2 * self._demand:
                self.rate = None
                self.on = self._pause_s > now_s

    def _decrease(self, now_s: float, floor: float) -> None:
        with self._lock:
            if self.led or now_s - self._cut_s < self.spacing_s:
                return
            if self.rate is None:
                self._demand = max(self._demand, (self.good + self._bad) / max(1.0, now_s - self.epoch_s))
                self._next_s = now_s
            self.rate = max(floor, self.cut * (self._demand if self.rate is None else self.rate))
            self._cut_s = now_s
            self.on = True
            self._changed(now_s)

    def _changed(self, now_s: float) -> None:
        self._changed_s = self.epoch_s = now_s
        self.good = self._bad = 0

    def _next_epoch(self, now_s: float) -> None:
        """Forget what came back before; without a limit it adds to the usual demand."""
        with self._lock:
            elapsed_s = min(now_s - self.epoch_s, MEMORY_S)
            if self.rate is None and elapsed_s > 0:
                self._demand += elapsed_s / MEMORY_S * ((self.good + self._bad) / elapsed_s - self._demand)
            self.epoch_s = now_s
            self.good = self._bad = 0
