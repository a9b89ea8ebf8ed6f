"""The traffic: what requests are, generated mixes of them, recorded traces, and the split over deployments."""

from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic, ReplayedTraffic, TrafficPlan, parse_traffic
from servescope.emulator.workload.presets import PRESETS, find_preset
from servescope.emulator.workload.requests import Cancel, Finished, Request, Send
from servescope.emulator.workload.traces import TraceRequest, TraceSurvey, read_trace, survey_trace
from servescope.emulator.workload.traffic import Traffic

__all__ = [
    "PRESETS",
    "Cancel",
    "Finished",
    "GeneratedTraffic",
    "Mix",
    "ReplayedTraffic",
    "Request",
    "Send",
    "TraceRequest",
    "TraceSurvey",
    "Traffic",
    "TrafficPlan",
    "find_preset",
    "parse_traffic",
    "read_trace",
    "survey_trace",
]
