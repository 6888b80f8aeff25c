"""How fast a dependency can be asked: no limit while it answers, an adaptive and bounded one while it does not.

The limit begins with signs of overload, is cut again while they last, grows while calls succeed, and gives itself up
when it no longer limits. Nobody waits longer than `max_wait_s`: who would have to is told so and sheds the call.

Failures are signs of overload only beyond those that are expected of the service (`share`), and while the fleet finds
out whether it is pressed at all (`steady`) the rate stays as it is.
"""

from __future__ import annotations

from threading import Lock

#: What came back is judged for two seconds at a time, anew after each change; usual is the mean of some more.
EPOCH_S, MEMORY_S = 2.0, 5.0
#: Overload: so many failures, and this share of what came back.
BAD_LEAST, BAD_SHARE = 2, 0.5
#: With a limit: it is cut when more than this share of what is expected fails, and grows while it is at most that.
CUT_SHARE, CALM_SHARE = 0.15, 0.1
#: Who knows only what it saw itself sees little: it is slower to cut, and rises faster.
CALM_ALONE = 0.2
#: A cut leaves at most this, and at least `cut`; in between what the service answers.
CUT_MOST = 0.95
#: The first rise after a cut; each one after it is twice as much, up to `rise`.
RISE_FIRST = 0.08
#: Where the fleet finds out whether a service is pressed, nobody begins a limit alone because of failures, unless less
#: than this is answered of so many; and nobody cuts it again before the fleet can have spoken.
CHOKED_SHARE, CHOKED_LEAST, VERDICT_S = 0.1, 20, 6.0
#: A service may ask for longer, and the call that was told will wait; others try again after this.
PAUSE_S_MAX = 60.0
#: A limit that nothing has changed for so long, because nobody came, is forgotten.
FORGET_S = 60.0
#: Others are told of a limit for so long after it was cut.
FRESH_S = 10.0


class Limiter:
    """Turns at an even rate. All of it is a few numbers: nothing grows with the calls that wait.

    `throttled` cuts the rate down to `floor_per_s`. Failures cut it to `floor_share` of the usual demand at most:
    a service that answers less than that is away, which is the breaker's business.
    """

    __slots__ = (
        "_bad", "_began_s", "_changed_s", "_cut_s", "_demand", "_lock", "_next_s", "_pause_s", "_step",
        "cut", "epoch_s", "floor_per_s", "floor_share", "good", "max_wait_s", "rate", "rise", "share", "spacing_s",
        "steady", "verdict_s",
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
        self.share = 1.0  # of requests that is expected to succeed
        self.verdict_s = 0.0
        self._lock = Lock()
        self.reset()

    def reset(self) -> None:
        """Begin again without a limit."""
        self.rate: float | None = None  # requests per second; None: no limit, the normal state
        self._next_s = 0.0  # when the next turn is free
        self._pause_s = 0.0  # until when the service asked for silence
        self._changed_s = self._cut_s = self._began_s = self.epoch_s = float("-inf")
        self._step = RISE_FIRST
        self.steady = False  # the fleet looks whether the service is pressed: no change meanwhile
        self.good = self._bad = 0  # what came back in this epoch
        self._demand = 0.0  # requests per second before the limit began

    def ask(self, now_s: float, longest_s: float | None = None) -> float:
        """Seconds to wait before sending. Up to `longest_s`, which is `max_wait_s` unless something cannot be put off,
        the turn is reserved; beyond nothing is: shed the call."""
        if self.rate is None:
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
        least = (
            BAD_LEAST / self.share**4
        )  # the more failures are expected, the more it takes to notice others
        wanted = self.share * (1 - (CUT_SHARE if self.rate is not None and self.verdict_s else BAD_SHARE))
        if self.rate is None and self.verdict_s:
            least, wanted = max(least, CHOKED_LEAST), min(wanted, CHOKED_SHARE)
        if self._bad >= least and self.good <= wanted * (self.good + self._bad):
            self._decrease(now_s, max(self.floor_per_s, self.floor_share * self._demand))

    def throttled(self, now_s: float, hint_s: float | None = None) -> None:
        """The service asks for less; with a hint, nothing is sent for that long. Where it is known to refuse some,
        however little it is asked, that is a failure like any other."""
        if self.share < 1:
            self.failed(now_s)
            return
        if now_s - self.epoch_s >= EPOCH_S:
            self._next_epoch(now_s)
        self._bad += 1
        self._decrease(now_s, self.floor_per_s)
        if hint_s is not None:
            with self._lock:
                self._pause_s = max(self._pause_s, now_s + min(hint_s, PAUSE_S_MAX))
                self._next_s = max(self._next_s, self._pause_s)

    def slow(self, now_s: float, per_s: float) -> None:
        """Ask for so many a second, neither more nor less, until `steady` is taken back."""
        with self._lock:
            self._measure(now_s)
            self.rate = max(self.floor_per_s, per_s)
            self.steady, self._cut_s, self._step = True, now_s, RISE_FIRST
            self._changed(now_s)

    def pause_s(self, now_s: float) -> float:
        """Seconds of silence that the service asked for and that are left."""
        return max(0.0, self._pause_s - now_s)

    def found(self, now_s: float) -> float | None:
        """The rate for others to adopt, while it is our own finding and fresh; what was adopted is not passed on."""
        return self.rate if now_s - self._cut_s <= FRESH_S else None

    def adopt(self, now_s: float, rate: float) -> None:
        """Others found that the service bears no more than this of us; from there it grows as ever."""
        with self._lock:
            rate = max(rate, self.floor_per_s)
            if self.rate is None or rate < self.rate:
                self.rate = rate
                self._next_s = max(self._next_s, now_s)
                self._changed(now_s)

    def _turn(self, now_s: float, longest_s: float) -> float:
        if now_s - max(self._changed_s, self._next_s) > FORGET_S:
            self.rate = None
        if self.rate is None:
            return 0.0
        wait_s = max(0.0, self._next_s - now_s)
        if wait_s <= longest_s:
            self._next_s = now_s + wait_s + 1 / self.rate
        return wait_s

    def _increase(self, now_s: float) -> None:
        with self._lock:
            calm_share = CALM_SHARE if self.verdict_s else CALM_ALONE
            calm = self.good >= self.share * (1 - calm_share) * (self.good + self._bad)
            if self.rate is None or self.steady or not calm or now_s - self._changed_s < self.spacing_s:
                return
            self.rate *= 1 + self._step if self.verdict_s else self.rise
            self._step = min(self.rise - 1, 2 * self._step)
            self._changed(now_s)
            if self.rate > 2 * self._demand:
                self.rate = None

    def _decrease(self, now_s: float, floor: float) -> None:
        with self._lock:
            if self.steady or now_s - self._cut_s < self.spacing_s or now_s - self._began_s < self.verdict_s:
                return
            answered = self.good / max(1, self.good + self._bad) / self.share
            left = min(max(self.cut, answered), CUT_MOST) if self.verdict_s else self.cut
            if self.rate is None:
                self._measure(now_s)
                self._began_s, left = now_s, self.cut
            self.rate = max(floor, left * (self._demand if self.rate is None else self.rate))
            self._cut_s, self._step = now_s, RISE_FIRST
            self._changed(now_s)

    def _measure(self, now_s: float) -> None:
        """What is usual, at the latest moment before the limit begins."""
        if self.rate is None:
            self._demand = max(self._demand, (self.good + self._bad) / max(1.0, now_s - self.epoch_s))
            self._next_s = now_s

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
