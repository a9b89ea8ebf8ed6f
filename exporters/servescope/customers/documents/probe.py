"""One labelled point, sent to a destination to see that it is accepted, and what its answer means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from yarl import URL

from servescope.customers.points.naming import service_attributes
from servescope.customers.points.points import Accepted, Descriptor, Stream, StreamPoint
from servescope.customers.policy.policy import Policy, Push
from servescope.customers.transports.senders import make_sender
from servescope.settings.values import format_duration
from servescope.web.posting import SendError

PROBE: Final = Descriptor(
    "servescope.export.probe", "servescope_export_probe", "1", "A test of the connection; it measures nothing.", "gauge"
)
"""The metric that is sent, whatever the customer's naming."""

_NOTABLE_SKEW_SECONDS: Final = 5.0

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "unreachable": "There was no connection: check host and port of url, the proxy, and the network between.",
        "timeout": "The receiver did not answer in time: check it, the network between, and timeout.",
        "tls": (
            "The certificates do not fit: check tls_ca_file and tls_server_name for the receiver's, and tls_cert_file "
            "with tls_key_file for ours."
        ),
        "credentials": "The receiver did not accept who we are: check the token or header, and what it may do.",
        "throttled": "The receiver is asked too much: check its limits, and the customer's interval and quotas.",
        "unavailable": "The receiver, or a proxy before it, has a fault of its own.",
        "refused": (
            "The receiver refused the data, or cannot read them: check protocol, the path of url and gzip, and what it "
            "demands of them."
        ),
        "too_large": "The request was too large: check max_request_size and the receiver's limit.",
        "protocol": "What answers is no such receiver: check the path of url, and protocol.",
    }
)
"""What each reason of `SendError` means to an operator."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What came of a probe: the answer, or the error, after so many seconds."""

    push: Push
    answer: Accepted | SendError
    seconds: float

    @property
    def is_accepted(self) -> bool:
        """Whether the point was taken."""
        return isinstance(self.answer, Accepted) and not self.answer.rejected

    def describe(self, most_age_ms: int) -> str:
        """A few lines for an operator; what was not accepted is kept for `most_age_ms`. No secret is in them."""
        url = URL(self.push.url)
        # A query may hold a token.
        place = f"{self.push.name} ({self.push.protocol}, {url.origin()}{url.path.rstrip('/')})"
        if isinstance(self.answer, SendError):
            if self.answer.retryable:
                later = f"What is sent now is tried again, for {format_duration(most_age_ms)} at most."
            else:
                later = "What is sent now is dropped, and recorded as a gap."
            lines = [f"{place}: failed: {self.answer}", MEANINGS[self.answer.reason], later]
        elif self.answer.rejected:
            lines = [f"{place}: accepted, but the point was rejected: {self.answer.message}", MEANINGS["refused"]]
        else:
            lines = [f"{place}: accepted after {self.seconds:.2f} s", *_remarks(self.answer)]
        return "\n  ".join(lines) + "\n"


async def send_probe(policy: Policy, push: Push, now_ms: int) -> ProbeOutcome:
    """Send the probe to a destination of a customer, once."""
    started = time.perf_counter()
    answer: Accepted | SendError
    stream = Stream(PROBE, (), (("customer", policy.name),), service_attributes(policy, {}))
    with ThreadPoolExecutor(1) as executor:
        sender = make_sender(push, executor)
        try:
            answer = await sender.send([StreamPoint(stream, None, now_ms, 1.0)])
        except SendError as error:
            answer = error
        finally:
            await sender.close()
    return ProbeOutcome(push, answer, time.perf_counter() - started)


def _remarks(answer: Accepted) -> list[str]:
    remarks = [f"The receiver says: {answer.message}"] if answer.message else []
    skew = answer.skew_seconds
    if skew is not None and abs(skew) > _NOTABLE_SKEW_SECONDS:
        ahead = "ahead of" if skew > 0 else "behind"
        remarks.append(f"Its clock is {abs(skew):.0f} s {ahead} ours: points may be refused as too old or too new.")
    return remarks
