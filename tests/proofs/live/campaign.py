"""A run: a healthy hour first, then every lane of episodes side by side, then what only the whole stack can suffer."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from alerts.alertmanager import RECEIVERS
from servescope.alerting.alerts import ALERTS
from servescope.errors import ServescopeError
from tests.proofs.live.compression import milliseconds
from tests.proofs.live.episodes import Episode, Place
from tests.proofs.live.receivers import Receivers
from tests.proofs.live.stack import LiveStack
from tests.proofs.live.watch import CALLING, Messages, Received, Watch
from tests.support.waiting import deadline_seconds

# Beyond what an alert may take by the emulated stack's time, on the wall clock of a machine of usual speed.
_PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2


@dataclass(slots=True)
class Outcome:
    """What became of one alert of an episode; times in seconds of the wall clock, None for what did not happen."""

    place: Place
    episode: Episode
    receiver: str = ""
    fired_after: float | None = None
    resolved_after: float | None = None
    muted: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    messages: Messages = field(default_factory=Messages)
    began: float = 0.0
    ended: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def alert(self) -> str:
        """The alert's name."""
        return self.place.alert


@dataclass(slots=True)
class Health:
    """The healthy hour: which alerts fired in Prometheus, and what people were sent."""

    seconds: float
    ended: float
    fired: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """The alerts that must not fire: all but information and the Watchdog."""
        return [name for name in self.fired if ALERTS[name].severity in ("critical", "warning")]


def run_healthy_hour(stack: LiveStack, watch: Watch, *, lead: str, length: str) -> Health:
    """Let the stack settle for `lead`, then watch it without faults for `length`."""
    time.sleep(stack.seconds(lead))
    began = time.monotonic()
    time.sleep(stack.seconds(length))
    ended = time.monotonic()
    health = Health(ended - began, ended)
    health.fired = sorted({name for name, _ in watch.fired(since=began, until=ended)})
    health.sent = sorted({received.name for received in watch.received(since=began) if received.receiver in CALLING})
    return health


def run_lanes(stack: LiveStack, watch: Watch, episodes: Sequence[Episode], say: Callable[[str], None]) -> list[Outcome]:
    """Run every episode, those of one lane one after another, and report what became of their alerts."""
    lanes: dict[str, list[Episode]] = {}
    for episode in episodes:
        lanes.setdefault(episode.lane, []).append(episode)
    outcomes: list[Outcome] = []
    threads = [
        # Daemons: an interrupted run does not wait for alerts.
        threading.Thread(
            target=_run_lane, args=(stack, watch, lane, outcomes, say), name=f"servescope-live-{name}", daemon=True
        )
        for name, lane in lanes.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _run_lane(
    stack: LiveStack, watch: Watch, lane: Sequence[Episode], outcomes: list[Outcome], say: Callable[[str], None]
) -> None:
    for episode in lane:
        try:
            found = run_episode(stack, watch, episode)
        except (ServescopeError, OSError) as error:
            found = [Outcome(place, episode, problems=[str(error)]) for place in episode.places()]
        outcomes.extend(found)
        for outcome in found:
            say(_tell(outcome))


def _tell(outcome: Outcome) -> str:
    def seconds(value: float | None) -> str:
        return "never" if value is None else f"{value:.0f} s"

    wrong = f"  WRONG: {'; '.join(outcome.problems)}" if outcome.problems else ""
    return (
        f"{outcome.alert} ({outcome.place.deployment or 'servescope'}): {outcome.receiver or 'nobody'} after "
        f"{seconds(outcome.fired_after)}, resolved after {seconds(outcome.resolved_after)}{wrong}"
    )


def run_episode(stack: LiveStack, watch: Watch, episode: Episode) -> list[Outcome]:
    """Activate the fault, wait for its alerts, remove it, wait until all are resolved; the outcome of each."""
    outcomes = [Outcome(place, episode) for place in episode.places()]
    began = time.monotonic()
    undo = episode.make(stack)
    try:
        _await_firing(stack, watch, episode, outcomes, began)
        _await_muted(stack, watch, episode, outcomes, began)
    finally:
        # What waits until it is undone may be resolved by then.
        undone = time.monotonic()
        undo()
    _await_resolved(stack, watch, outcomes, undone)
    _note_others(watch, episode, outcomes, began, undone)
    for outcome in outcomes:
        outcome.began, outcome.ended = began, time.monotonic()
        _count_messages(watch, outcome)
    return outcomes


def _count_messages(watch: Watch, outcome: Outcome) -> None:
    """The messages of the fault: at most one page and one ticket of its deployment, or of the alerts without one."""
    own = outcome.place.deployment or outcome.episode.deployment
    proven = outcome.episode.places()

    def concerns(name: str, deployment: str) -> bool:
        return deployment == own if deployment else Place(name, "") in proven

    outcome.messages = watch.messages(concerns, since=outcome.began, until=outcome.ended)
    for number, word in ((outcome.messages.pages, "pages"), (outcome.messages.tickets, "tickets")):
        if number > 1:
            outcome.problems.append(f"{number} {word} for one fault")


def _await_firing(stack: LiveStack, watch: Watch, episode: Episode, outcomes: Sequence[Outcome], began: float) -> None:
    for outcome in outcomes:
        alert = ALERTS[outcome.alert]
        allowed = _seconds(stack, alert.for_, episode.fires_within)
        received = _await_received(watch, outcome, "firing", since=began, until=began + allowed)
        if received is None:
            outcome.problems.append(f"reached nobody within {allowed:.0f} s")
            continue
        outcome.receiver, outcome.fired_after = received.receiver, received.at - began
        if received.receiver != RECEIVERS[alert.severity]:
            outcome.problems.append(f"reached {received.receiver}, expected {RECEIVERS[alert.severity]}")


def _await_muted(stack: LiveStack, watch: Watch, episode: Episode, outcomes: Sequence[Outcome], began: float) -> None:
    for written, by in episode.muted.items():
        place = episode.place(written)
        until = began + _seconds(stack, ALERTS[place.alert].for_, episode.fires_within)
        while not _is_muted(watch, place, by, began) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        if not _is_muted(watch, place, by, began):
            outcomes[0].problems.append(f"{written} was not muted by {by}")
        if any(
            (received.name, received.deployment) == (place.alert, place.deployment)
            for received in watch.received(since=began)
        ):
            outcomes[0].problems.append(f"{written} was sent all the same")


def _is_muted(watch: Watch, place: Place, by: str, since: float) -> bool:
    if by not in ALERTS:
        # Alertmanager does not show what a time interval mutes: it fires, and is not sent.
        return watch.was_firing(place.alert, place.deployment, since=since)
    return any(
        (each.name, each.deployment) == (place.alert, place.deployment) and by in each.by
        for each in watch.muted(since=since, until=time.monotonic())
    )


def _await_resolved(stack: LiveStack, watch: Watch, outcomes: Sequence[Outcome], undone: float) -> None:
    for outcome in outcomes:
        if outcome.fired_after is None:
            continue
        allowed = _seconds(stack, ALERTS[outcome.alert].keep_firing_for, outcome.episode.resolves_within)
        received = _await_received(watch, outcome, "resolved", since=undone, until=undone + allowed)
        if received is None:
            outcome.problems.append(f"not resolved within {allowed:.0f} s")
        else:
            outcome.resolved_after = received.at - undone


def _note_others(watch: Watch, episode: Episode, outcomes: Sequence[Outcome], began: float, undone: float) -> None:
    """Other alerts of the same deployment during the fault, and inhibited ones."""
    muted = {each.name for each in watch.muted(since=began, until=undone) if each.deployment == episode.deployment}
    also = {
        received.name
        for received in watch.received(since=began)
        if received.deployment == episode.deployment and received.status == "firing" and received.at <= undone
    }
    proven = {place.alert for place in episode.places()}
    for outcome in outcomes:
        outcome.muted = sorted(muted | {episode.place(written).alert for written in episode.muted})
        outcome.also = sorted(also - proven) if episode.deployment else []


def find_strays(watch: Watch, outcomes: Sequence[Outcome], *, since: float, grace: float) -> list[str]:
    """Pages and tickets for a deployment without a fault within the last `grace` seconds; repeated ones are known."""
    found = []
    open_alerts: set[tuple[str, ...]] = set()
    for received in watch.received():
        alert = (received.receiver, *(text for pair in sorted(received.labels.items()) for text in pair))
        if received.status != "firing":
            open_alerts.discard(alert)
        if received.status != "firing" or received.receiver not in CALLING or alert in open_alerts:
            continue
        open_alerts.add(alert)
        if received.at >= since and not any(
            (outcome.episode.everywhere or received.deployment in _deployments(outcome.episode))
            and outcome.began <= received.at <= outcome.ended + grace
            for outcome in outcomes
        ):
            found.append(f"{received.receiver} for {received.name} of {received.deployment or 'servescope'}")
    return sorted(set(found))


def _deployments(episode: Episode) -> set[str]:
    return {episode.deployment, *(place.deployment for place in episode.places())}


def check_notifications(watch: Watch) -> list[str]:
    """What notifications lack: summary, deployment, runbook, links."""
    found = set()
    for received in watch.received():
        for name in ("summary", "description", "headline", "runbook_url", "dashboard_url"):
            text = received.annotations.get(name, "")
            if not text or "{{" in text or "<no value>" in text:
                found.add(f"{received.name}: {name} is {text!r}")
        if received.deployment and received.deployment not in received.annotations.get("description", ""):
            found.add(f"{received.name}: no deployment in {received.annotations.get('description')!r}")
    return sorted(found)


def check_rendered(receivers: Receivers) -> list[str]:
    """What the messages of the templates lack: the headline, a line for each alert, and where to go from there."""
    found = set()
    messages = [attachment for sent in receivers.rendered() for attachment in sent.body["attachments"]]
    for message in messages:
        title, text = message["title"], message["text"]
        if not re.fullmatch(r"(?:RESOLVED )?\S.*: \S.* \((?:critical|warning|info)\b.*\)", title):
            found.add(f"a headline is {title!r}")
        if not re.match(r"- (?:since|resolved at) \d{4}-\d\d-\d\d [\d:]+ UTC: \S", text):
            found.add(f"no line for an alert in {text!r}")
        for name, form in (
            ("Runbook", r"\S+[/=]Servescope\w+(?:\.md)?"), ("Dashboard", r"\S+/d/\S+"),
            ("Silence", r"http://\S+/#/silences/new\?filter=\S+(?:alertname|component|deployment_id)\S+"),
        ):  # fmt: skip
            if not re.search(rf"(?m)^{name}: {form}$", text):
                found.add(f"no {name.lower()} in {text!r}")
    return sorted(found) if messages else ["no message was rendered by the templates"]


def _await_received(watch: Watch, outcome: Outcome, status: str, *, since: float, until: float) -> Received | None:
    """The first notification with this status; None if it does not arrive in time."""
    while True:
        for received in watch.received(since=since):
            if Place(received.name, received.deployment) == outcome.place and received.status == status:
                return received
        if time.monotonic() > until:
            return None
        time.sleep(_LOOK_SECONDS)


def _seconds(stack: LiveStack, own: str, allowed: str) -> float:
    """On the wall clock: an alert's own duration and what it is allowed beside it."""
    return ((milliseconds(own) if own else 0) + milliseconds(allowed)) / 1000 / stack.times + deadline_seconds(
        _PATIENCE_SECONDS
    )
