"""Two customers whose deployments are named alike, and fleets whose series claim the other's labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from servescope.contract.identity import Deployment, Identity
from servescope.contract.samples import Series, make_labels
from servescope.customers.points.edges import TargetInterval
from servescope.customers.points.naming import known_labels
from servescope.customers.policy.policy import HashKey, Naming, Policy, Resolution
from servescope.customers.selection import select_figures, select_metrics
from tests.support.customer_edges import Seen, histogram, target

LOOK_ALIKES = (
    "chat", "Chat", "chat ", " chat", "chat-", "chat.", "chat\u200b", "ch\u0430t", "\uff43hat", "chat\u0301",
    "c|hat", "chat|search", ".*", "chat.*", 'chat"} or {x=~".*', 'chat",deployment_id=~".+', "chat\\", "chat'--",
    "%", "_", "../chat", "chat\u2028", "\U0001f980", "chat\ud7ff", "{}", "$1", "chat#0", "chat/decode/", "NaN", "le",
)  # fmt: skip
"""Names of deployments, models and replicas; each is a name of its own."""

METRICS = ("requests_total", "queued_requests", "kv_cache_usage", "time_to_first_token_seconds")
_NATIVE = ("engine", "deployment_id", "exported_deployment_id", "customer", "replica", "le", "window", "__name__")


@dataclass(frozen=True)
class TwoCustomers:
    """Two policies with deployments of their own, of which `moving` is the second's from the middle on."""

    first: Policy
    second: Policy
    moving: Deployment


def names() -> st.SearchStrategy[str]:
    """Look-alikes, and any text that an identity can have."""
    text = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
    return st.sampled_from(LOOK_ALIKES) | text


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """A deployment, as an operator may name it."""
    return Deployment(draw(names()), draw(names()), draw(st.sampled_from(("v1", "v2"))), draw(st.just("") | names()))


@st.composite
def policies(draw: st.DrawFn, name: str, owned: Sequence[Deployment], key: str) -> Policy:
    """Any policy for these deployments."""
    resolution: Resolution = "replica" if draw(st.booleans()) else "deployment"
    labels = draw(st.lists(st.sampled_from(known_labels()), unique=True))
    if resolution == "deployment":
        labels = [label for label in labels if label not in ("replica", "role")]
    hashed = draw(st.booleans())
    chosen = select_metrics(["all"], resolution).chosen
    metrics = tuple(draw(st.lists(st.sampled_from([each for each in METRICS if each in chosen]), unique=True)))
    renames = {label: f"their_{label}" for label in labels if draw(st.booleans())}
    return Policy(
        name,
        frozenset(owned),
        metrics,
        select_figures(["all"], metrics).chosen,
        tuple(labels),
        renames,
        replicas="hashed" if hashed else "plain",
        key=HashKey(key) if hashed and "replica" in labels else None,
        resolution=resolution,
        naming=draw(st.sampled_from(Naming)),
    )


@st.composite
def customers(draw: st.DrawFn, first_key: str, second_key: str) -> TwoCustomers:
    """Two customers that share no deployment."""
    found = draw(st.lists(deployments(), min_size=3, max_size=5, unique=True))
    first = draw(policies("acme", found[:2], first_key))
    second = draw(policies("globex", found[2:], second_key))
    return TwoCustomers(first, second, found[1])


@st.composite
def fleets(draw: st.DrawFn, owned: Sequence[Deployment], others: Sequence[Deployment]) -> list[TargetInterval]:
    """Targets of deployments at one edge, whose own labels claim those of others."""
    targets = []
    for deployment in owned:
        for replica in draw(st.lists(names(), max_size=2, unique=True)):
            values = {name: getattr(deployment, name) for name in ("model_name", "deployment_id", "inference_stack")}
            identity = Identity(**values, environment=deployment.environment, replica=replica)
            targets.append(target(identity, draw(pages(others))))
    return targets


@st.composite
def pages(draw: st.DrawFn, others: Sequence[Deployment]) -> dict[Series, Seen]:
    """The series of a target; labels beyond the contract's claim what is another's."""
    claimed = draw(st.sampled_from([*others, Deployment("m", "chat", "v2")]))
    native = dict.fromkeys(draw(st.lists(st.sampled_from(_NATIVE), unique=True)), claimed.deployment_id)
    numbers = st.integers(0, 10**6)
    seen = {
        Series("requests_total", make_labels({**native, "outcome": "ok"})): _counted(draw(numbers), draw(numbers)),
        Series("queued_requests", make_labels(native)): Seen(draw(numbers)),
        Series("kv_cache_usage", make_labels(native)): Seen(draw(numbers) / 10**6),
    }
    counts = draw(numbers), draw(numbers)
    seen |= histogram("time_to_first_token_seconds", (0.1,), counts, counts)
    return {name: replace(each, ended=True) if draw(st.booleans()) else each for name, each in seen.items()}


def _counted(value: int, gain: int) -> Seen:
    return Seen(value + gain, gain)
