"""Configurations moved from v1 to v2, or back, for a command: a report, a diff, and what is to be decided."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servescope.errors import ServescopeError, UsageError
from servescope.store.prometheus.options import configure_history

if TYPE_CHECKING:
    from servescope.migration.advice.advice import Advice
    from servescope.migration.report import FileReport
    from servescope.migration.traffic.token_target import TokenTargets

FORMATS: Final = ("text", "diff", "json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "exit codes: 0 done, or nothing to do; 1 with --check when a file would change; 2 on any error; "
        "3 when an answer is needed or a file has to stay on v1"
    )
    parser.add_argument(
        "configs", nargs="*", type=Path, metavar="CONFIG",
        help="a configuration, a backend server's JSON, or a folder in which every config.yaml is migrated",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--write", action="store_true", help="write the files, and keep each old one, as FILE.v1 where it is replaced"
    )
    what.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file would change")
    parser.add_argument("--back", action="store_true", help="make the v1 file of a v2 one, for a rollback")
    parser.add_argument("--strict", action="store_true", help="take warnings as errors")
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
    parser.add_argument(
        "--show-secrets", action="store_true", help="print secrets as they are; without it they are masked (••••••)"
    )
    answers = parser.add_argument_group("answers")
    answers.add_argument(
        "--max-num-tokens", type=int, metavar="N", help="max_num_tokens of v2 for files whose value is above v2's limit"
    )
    for option, limit in (("--max-seq-len", "longest sequence"), ("--max-batch-size", "largest batch")):
        answers.add_argument(
            option, type=int, metavar="N", help=f"v2's {limit}, where the backend server's is beyond it"
        )
    answers.add_argument(
        "--n-gram", action="store_true", help="put speculation by n-grams in the Management API's body"
    )
    answers.add_argument(
        "--llm-config", type=Path, metavar="FILE", help="the llm_config of the Management API (JSON or YAML), checked"
    )
    answers.add_argument("--target-in-flight-tokens", type=int, metavar="N", help="v2's target of the token autoscaler")
    answers.add_argument("--concurrency-target", type=float, metavar="N", help="v1's target, to compute v2's with")
    answers.add_argument(
        "--tokens-per-request", type=float, metavar="N", help="average tokens of a request, in and out"
    )
    _add_traffic(parser)
    backend = parser.add_argument_group("answers for the backend server's JSON")
    backend.add_argument("--pipeline", type=Path, metavar="FILE", help="the pipeline configuration beside it")
    backend.add_argument("--checkpoint", metavar="SOURCE:REPO", help="the model, such as HF:owner/name")
    backend.add_argument("--accelerator", metavar="TYPE", help="the kind of GPU, such as H100")
    backend.add_argument("--quantization-type", metavar="TYPE", help="v2's quantization of weights that are w4")
    backend.add_argument("--speculative-model-dir", metavar="FOLDER", help="the weights of Eagle's head")
    backend.add_argument(
        "--eagle3-one-model", choices=("yes", "no"), help="whether v2 runs an Eagle3 head and the model as one"
    )
    backend.add_argument(
        "--num-nextn-predict-layers", type=int, metavar="N", help="the model's layers that predict next tokens, for MTP"
    )


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose traffic, and what is decided beside it."""
    group = parser.add_argument_group("numbers from the traffic that v1 served")
    group.add_argument(
        "--deployment", metavar="ID",
        help="the deployment, by its deployment_id or as LABEL=VALUE,… (default: the only one of v1)",
    )  # fmt: skip
    configure_history(group)
    group.add_argument("--past", metavar="DURATION", help="how much is read up to then (default: 1d)")
    group.add_argument("--targets", metavar="N,…", help="the targets to simulate (default: around what was measured)")
    group.add_argument("--max-replica", type=int, metavar="N", help="v2's max_replica (default: the most v1 had)")
    group.add_argument(
        "--requests-per-replica", type=int, metavar="N", help="requests that a replica serves at once (default: "
        "max_batch_size)",
    )  # fmt: skip
    group.add_argument(
        "--start-seconds", type=float, metavar="SECONDS", help="how long a new replica needs to serve (default: 120)"
    )
    group.add_argument(
        "--measured-target", action="store_true", help="put the recommended target in the Management API's body"
    )


def measure(arguments: argparse.Namespace) -> TokenTargets | None:
    """The numbers from traffic, None where the arguments choose none; raises UsageError."""
    from servescope.migration.files import read_numbers

    with _wrong_usage(arguments):
        return read_numbers(arguments)


def migrate(arguments: argparse.Namespace, numbers: TokenTargets | None = None) -> list[FileReport]:
    """Migrate every file, with the target of `numbers` where it is asked for.

    Raises UsageError for arguments that are wrong, or do not go together.
    """
    from servescope.migration.files import migrate_file, read_options
    from servescope.migration.finding import Found, find_configs

    with _wrong_usage(arguments):
        options = read_options(arguments, numbers)
        configs = list(find_configs(arguments.configs))  # all are found before one is written
        return [migrate_file(each.path, options, each.folder) if isinstance(each, Found) else each for each in configs]


@contextmanager
def _wrong_usage(arguments: argparse.Namespace) -> Iterator[None]:
    """Errors as those of the usage; what one of reading quotes of a file is masked."""
    from servescope.migration.document.document import DocumentError
    from servescope.migration.fields.masking import mask_reading

    try:
        yield
    except DocumentError as error:
        raise UsageError(str(error) if arguments.show_secrets else mask_reading(error)) from error
    except ServescopeError as error:
        raise UsageError(str(error)) from error


def show(
    found: Sequence[FileReport],
    arguments: argparse.Namespace,
    numbers: TokenTargets | None = None,
    advice: Sequence[Advice] = (),
) -> int:
    """Print the reports, the numbers from traffic and the advice on it; returns the exit code."""
    from servescope.migration import report
    from servescope.migration.masked_report import mask_report

    shown = list(found) if arguments.show_secrets else [mask_report(each) for each in found]
    if arguments.format == "json":
        text = json.dumps(report.to_json(shown, numbers, advice), allow_nan=False, ensure_ascii=False, indent=1)
        # Half of a surrogate pair, of a file's name or escaped in YAML, is escaped in the same way in JSON.
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    elif arguments.format == "diff":
        for each in shown:
            sys.stdout.write(report.diff(each))
            if each.status in ("asked", "error") or (each.note and each.document is None):
                sys.stderr.write(report.describe(each))
    else:
        sys.stdout.write(_describe(shown, numbers, advice))
    if any(map(report.hides_secrets, shown)):
        sys.stderr.write(
            "servescope: secrets are masked (••••••), so that not every diff can be applied: see --show-secrets\n"
        )
    return report.exit_code(found, check=arguments.check)


def _describe(shown: Sequence[FileReport], numbers: TokenTargets | None, advice: Sequence[Advice]) -> str:
    """The reports with their diffs, the numbers from traffic, and the advice on it, for a person."""
    from servescope.migration import report
    from servescope.migration.advice.advice import describe_advice
    from servescope.migration.traffic.token_report import describe_targets

    parts = ["\n".join(f"{report.describe(each)}{_indented(report.diff(each))}" for each in shown)]
    if numbers is not None:
        parts.append(f"{chr(10) if shown else ''}{describe_targets(numbers)}")
    elif len(shown) != 1:
        parts.append(f"\n{report.describe_summary(shown)}\n")
    if advice:
        parts.append(f"\n{describe_advice(advice)}")
    return "".join(parts)


def _indented(diff: str) -> str:
    return f"\n{diff}" if diff else ""
