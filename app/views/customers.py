"""The export to customers, for its operator: what was delivered to whom, what is missing, and what is withheld."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import streamlit as st

from app import frame, selection
from app.customers import export_tables, exports
from app.customers.export_tables import LOOKS, OffboardingStep
from app.customers.exports import Destination, Exports
from app.elements import display, markup
from app.elements.plain import Markdown, escape, plain, visible
from app.selection import TimeRange
from servescope.customers.documents.explaining import GEN_AI
from servescope.customers.points.quotas import most_series
from servescope.customers.policy.secrecy import files_of
from servescope.errors import ServescopeError
from servescope.settings.values import format_duration
from servescope.store.history import History

VIEWS = {
    "destinations": "Destinations", "statement": "Delivery statement", "policy": "What is exported",
    "offboarding": "Offboarding",
}  # fmt: skip
FILTERS = {"any": "Any state", "trouble": "Late, behind or failing", "missing": "With gaps"}


def show() -> None:
    """The page."""
    store = frame.open_store()
    span, notes = frame.head("Customers", store)
    try:
        found = exports.read_exports(span)
    except ServescopeError as error:
        frame.show_error(error)
        return
    for problem in found.problems:
        st.error(plain(problem))
    if not found.begun:
        invite_export()
        return
    view = selection.choose(
        notes, "export", list(VIEWS), "destinations", st.segmented_control, label="View",
        label_visibility="collapsed", format_func=VIEWS.__getitem__,
    )  # fmt: skip
    if view == "destinations":
        text, state = selection.choose_rows(
            notes, "find_customer", "Find a customer, destination, host or problem", "delivery", FILTERS
        )
        frame.render(lambda moved: draw_destinations(moved, text, state), span)
        return
    customers = found.customers()
    if not customers:
        st.info("There are no customers.")
        return
    chosen = selection.choose(
        notes, "customer", customers, customers[0], st.selectbox, label="Customer", format_func=visible
    )
    if view == "statement":
        frame.render(lambda moved: draw_statement(moved, chosen), span)
    elif view == "policy":
        frame.repeat(lambda: draw_policy(store, found, chosen), every=None)
    else:
        frame.repeat(lambda: draw_offboarding(chosen))


def invite_export() -> None:
    """How the export is begun, while nothing was ever delivered; checks again by itself."""
    st.info("Nothing was delivered to any customer yet.")
    st.markdown("Start the export; this page fills with its first delivery:")
    config, cursors = exports.config_path(), exports.cursors_path()
    store = frame.store_path()
    command = f"servescope customers run --config {config} --cursors {cursors} --store {store}"
    st.code(visible(command), language="shell")

    def look_again() -> None:
        if cursors.exists():
            st.rerun(scope="app")

    frame.repeat(look_again)


# --- Destinations -----------------------------------------------------------------------------------------------------


def filter_destinations(found: Sequence[Destination], text: str, state: str) -> list[Destination]:
    """The destinations that hold every word of the text, in this state."""
    words = text.lower().split()
    return [each for each in found if _is_in(each, state) and all(word in _searched(each) for word in words)]


def _is_in(one: Destination, state: str) -> bool:
    if state == "missing":
        return bool(one.statement.gaps)
    return state == "any" or one.state in ("late", "behind", "waiting") or one.is_failing


def _searched(one: Destination) -> str:
    address = exports.address_of(one.to, one.lane.customer)
    problem = one.status.problem[1] if one.status.problem else ""
    return " ".join((one.lane.customer, one.lane.destination, address, problem, LOOKS[one.state][0])).lower()


def draw_destinations(span: TimeRange, text: str, state: str) -> None:
    """All destinations, those that need somebody first."""
    found = exports.read_exports(span)
    shown = filter_destinations(found.destinations, text, state)
    frame.describe_range(span, None, export_tables.list_destinations(shown), "customers")
    st.html(markup.draw_tiles(_summarise(found)))
    if not found.destinations:
        st.info("No destination is configured, and nothing was delivered.")
    elif not shown:
        st.info("No destination matches.")
    else:
        st.html(export_tables.draw_destinations(shown, selection.reader_zone(), selection.range_parameters()))
        st.caption(
            "Deliveries are kept by the hour: an hour that the range touches counts whole. What is on a page that is "
            "scraped counts as delivered."
        )


def _summarise(found: Exports) -> list[tuple[str, str, str]]:
    states = Counter(each.state for each in found.destinations)
    failing = sum(each.is_failing for each in found.destinations)
    gaps = [each for each in found.destinations if each.statement.gaps]

    def count(number: int, look: str) -> str:
        return markup.element("span", str(number), f"value {look}" if number else "value")

    return [
        ("Destinations", str(len(found.destinations)), f"of {len(found.customers())} customers"),
        ("Current", count(states["current"], "good"), "less than two intervals behind"),
        ("Behind", count(states["behind"] + states["waiting"], "warning"), f"{states['waiting']} received nothing yet"),
        ("Late", count(states["late"], "critical"), LOOKS["late"][2]),
        ("Failing", count(failing, "critical"), "the last problem is newer than the last delivery"),
        ("With gaps", count(len(gaps), "warning"), "in the range"),
    ]


# --- The statement ----------------------------------------------------------------------------------------------------


def draw_statement(span: TimeRange, customer: str) -> None:
    """What a customer received of the range, hour by hour, and which times are missing."""
    found = exports.read_exports(span).of(customer)

    def document() -> str:
        return json.dumps([each.statement.to_json() for each in found], ensure_ascii=False, indent=1)

    if not found:
        st.info(f"{plain(customer)} has no destination that is delivered to.")
        return
    frame.describe(
        _describe_span(span), export_tables.list_statement(found), f"statement-{customer}",
        every=frame.REFRESH if span.live else None, document=document,
    )  # fmt: skip
    st.html(export_tables.draw_destinations(found, selection.reader_zone(), selection.range_parameters()))
    if any(each.statement.deliveries or each.statement.gaps for each in found):
        st.html(export_tables.draw_statement(found, selection.reader_zone()))
        st.caption("Deliveries are kept by the hour, for 400 days: an hour that the range touches is shown whole.")
    else:
        st.info("Nothing was delivered of this range.")


def _describe_span(span: TimeRange) -> str:
    return " – ".join(display.format_time(each, selection.reader_zone()) for each in (span.start_ms, span.end_ms))


# --- What is exported -------------------------------------------------------------------------------------------------


def draw_policy(store: History, found: Exports, customer: str) -> None:
    """What a customer receives of what was scraped last, and why not the rest."""
    policy = found.policies.get(customer)
    if policy is None:
        st.info(f"{plain(customer)} is not in the configuration: nothing is exported.")
        return
    explained = exports.explain(store, policy, selection.now_ms())
    zone = selection.reader_zone()
    frame.describe(
        f"as of {display.format_time(explained.time_ms, zone)}", export_tables.list_explanation(explained),
        f"policy-{customer}", every=None,
    )  # fmt: skip
    quota = most_series(policy)
    most = "no quota" if quota is None else f"of {quota:,} that the quota allows"
    ids = sorted({f"{each.deployment_id} ({each.inference_stack})" for each in policy.deployments})
    st.html(
        markup.draw_tiles(
            [
                ("Deployments", str(len(ids)), escape(", ".join(ids[:3]) + (" …" if len(ids) > 3 else ""))),
                ("Interval", format_duration(policy.interval_ms), escape(f"a point of each {policy.resolution}")),
                ("Series", f"{explained.series:,}", most),
                ("Samples", f"{explained.samples_per_minute:,.0f}", "a minute"),
                ("Withheld", f"{len(explained.withheld):,}", "native series and figures"),
            ]
        )
    )
    st.markdown("**Withheld**")
    if explained.withheld:
        st.html(export_tables.draw_withheld(export_tables.group_withheld(explained)))
    else:
        st.info("Nothing is withheld.")
    if explained.labels:
        st.html(export_tables.draw_labels(explained))
    st.markdown("**Exported**")
    if explained.received:
        st.html(export_tables.draw_received(explained))
    else:
        st.info(
            "Nothing is exported: no deployment of the customer has series that the policy allows.",
        )
    st.caption(f"{Markdown(display.as_sentence(GEN_AI))} `servescope customers check` lists every series.")


# --- Offboarding ------------------------------------------------------------------------------------------------------


def draw_offboarding(customer: str) -> None:
    """What is to do until nothing of a customer is left, and what of that is done."""
    found = exports.read_exports(TimeRange(selection.now_ms() - 1, selection.now_ms(), live=False))
    steps = list_steps(found, customer)
    if customer in found.removed:
        since = display.format_time(found.removed[customer], selection.reader_zone())
        st.markdown(f"**{plain(customer)}** was removed on {plain(since)}.")
    else:
        st.markdown(f"To end the export to **{plain(customer)}** and delete its cursors and its key, run:")
        st.code(
            f"servescope customers remove {visible(customer)} --config {visible(exports.config_path())} "
            f"--cursors {visible(exports.cursors_path())}",
            language="shell",
        )
    st.html(export_tables.draw_steps(steps))
    st.caption("The console reads only: it removes nothing.")


def list_steps(found: Exports, customer: str) -> list[OffboardingStep]:
    """The steps of an offboarding, as they are now."""
    policy = found.policies.get(customer)
    rows, is_removed = exports.count_rows(customer), customer in found.removed
    steps = [
        OffboardingStep(
            "Remove the customer: nothing is sent any more",
            _describe_end(is_removed, customer in found.unended),
            is_removed and customer not in found.unended,
        ),
        OffboardingStep(
            "Cursors, deliveries, gaps and problems are deleted and overwritten",
            f"{export_tables.count(rows, 'row')} left",
            rows == 0,
        ),
    ]
    files = "Delete the files with its key, tokens and certificates"
    if policy is None:
        steps.append(OffboardingStep(files, "its table named them", None))
    else:
        others = {path for each in found.policies.values() if each is not policy for path in files_of(each)}
        left = [str(path) for path in sorted(files_of(policy) - others) if path.exists()]
        steps.append(OffboardingStep(files, f"left: {', '.join(left)}" if left else "none is its own alone", not left))
    steps += [
        OffboardingStep(
            "Delete its [[customers]] table",
            "still there" if policy else "the configuration is wrong, see above" if found.problems else "it is gone",
            None if found.problems and not policy else policy is None,
        ),
        OffboardingStep(
            "Reload the export with SIGHUP", "its log then reports that the configuration was applied", None
        ),
        OffboardingStep("Revoke at the customer's backend the token that we had", "nothing here shows it", None),
    ]
    return steps


def _describe_end(is_removed: bool, is_unended: bool) -> str:
    if not is_removed:
        return "still delivered to"
    return "the export has not confirmed that it ended" if is_unended else "removed, and its lanes have ended"


show()
