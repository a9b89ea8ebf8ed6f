"""The options of `servescope emulate` for what it serves: metric names, API, events."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from servescope.errors import UsageError, require_extra

if TYPE_CHECKING:
    from servescope.emulator.block_contents import BlockContents
    from servescope.emulator.deployment.stack import EmulatedStack
    from servescope.emulator.faces.pages import Pages
    from servescope.emulator.server.server import RouteAdder

API_KEY_VARIABLE = "SERVESCOPE_EMULATOR_API_KEY"
_MOST_KEY_CHARACTERS = 1024


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="[DEPLOYMENT=]NAME",
        help="names of the series at /metrics: those of an engine or frontend that has a source map, such as vllm, or "
        "of one of each, such as sglang,sglang-router; of one deployment alone with its name before, then it may be "
        "repeated (default: servescope's own)",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"key that clients of the OpenAI API must send (default: ${API_KEY_VARIABLE}, or none)",
    )
    parser.add_argument(
        "--kv-events",
        metavar="ENDPOINT",
        help="publish the caches' events in vLLM's format, the first engine's at this ZeroMQ address, such as "
        "tcp://127.0.0.1:5557, the next one's at the port behind it; /kv-events lists them",
    )
    parser.add_argument(
        "--kv-events-replay",
        metavar="ENDPOINT",
        help="ZeroMQ address of the first engine's replay socket, for subscribers that missed batches",
    )
    parser.add_argument(
        "--kv-events-topic", metavar="TOPIC", default="", help="topic of the events (default: an empty one, as vLLM's)"
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What a server is started with; call `close` when it has ended."""

    pages: Pages
    add_routes: list[RouteAdder]
    close: Callable[[], None] = lambda: None


def prepare(arguments: argparse.Namespace, stack: EmulatedStack) -> Served:
    """What the arguments ask for. Raises UsageError."""
    from servescope.emulator.block_contents import BlockContents
    from servescope.emulator.faces.faces import make_pages
    from servescope.emulator.openai import api as openai_api

    contents = BlockContents() if arguments.kv_events else None
    settings = openai_api.OpenAiSettings(api_key=_read_key(arguments), seed=arguments.seed, contents=contents)
    pages = make_pages(arguments.metrics, stack.deployments)
    add_api: RouteAdder = partial(openai_api.add_routes, settings=settings)
    if contents is None:
        if arguments.kv_events_replay or arguments.kv_events_topic:
            raise UsageError("--kv-events-replay and --kv-events-topic go with --kv-events, which is not given")
        return Served(pages, [add_api])
    return _publish_events(arguments, stack, pages, add_api, contents)


def _publish_events(
    arguments: argparse.Namespace, stack: EmulatedStack, pages: Pages, add_api: RouteAdder, contents: BlockContents
) -> Served:
    require_extra("emulator", "msgspec", "zmq")
    from servescope.emulator.server.kv_events import KvEvents, parse_endpoint

    replay = arguments.kv_events_replay
    events = KvEvents(
        stack.deployments,
        parse_endpoint("--kv-events", arguments.kv_events),
        replay=parse_endpoint("--kv-events-replay", replay) if replay else None,
        topic=arguments.kv_events_topic,
        contents=contents,
    )
    return Served(pages, [add_api, events.add_routes], events.close)


def _read_key(arguments: argparse.Namespace) -> str | None:
    key: str | None = arguments.api_key
    if key is None:
        key = os.environ.get(API_KEY_VARIABLE) or None
    # Others cannot be written into a header; and an empty one would be no lock.
    if key is not None and not (0 < len(key) <= _MOST_KEY_CHARACTERS and key.isascii() and key.isprintable()):
        raise UsageError(
            f"the API key has {len(key)} characters, expected 1 to {_MOST_KEY_CHARACTERS} printable ASCII characters"
        )
    return key
