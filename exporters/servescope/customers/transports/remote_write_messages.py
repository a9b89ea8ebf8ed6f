"""The protobuf messages of Prometheus remote write 1.0 and 2.0, as far as they are sent.

Their fields are those of the specifications (https://prometheus.io/docs/specs/prw/); no package has them. They are in
a pool of their own, so that a program with other definitions of the same names is not disturbed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    # Enums are numbers on the wire; `METRIC_TYPES` has them.
    "enum": FieldDescriptorProto.TYPE_INT32,
}

_FILES = {
    "prometheus": {
        "WriteRequest": {"timeseries": (1, "repeated TimeSeries"), "metadata": (3, "repeated MetricMetadata")},
        "TimeSeries": {"labels": (1, "repeated Label"), "samples": (2, "repeated Sample")},
        "Label": {"name": (1, "string"), "value": (2, "string")},
        "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
        "MetricMetadata": {
            "type": (1, "enum"), "metric_family_name": (2, "string"), "help": (4, "string"), "unit": (5, "string"),
        },
    },
    "io.prometheus.write.v2": {
        "Request": {"symbols": (4, "repeated string"), "timeseries": (5, "repeated TimeSeries")},
        "TimeSeries": {
            "labels_refs": (1, "repeated uint32"), "samples": (2, "repeated Sample"), "metadata": (5, "Metadata"),
        },
        "Sample": {"value": (1, "double"), "timestamp": (2, "int64"), "start_timestamp": (3, "int64")},
        "Metadata": {"type": (1, "enum"), "help_ref": (3, "uint32"), "unit_ref": (4, "uint32")},
    },
}  # fmt: skip

METRIC_TYPES = {"counter": 1, "gauge": 2, "histogram": 3}
"""The number of each kind, the same in both versions."""


def _make_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for package, messages in _FILES.items():
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        file.message_type.extend(_message(package, name, fields) for name, fields in messages.items())
        pool.Add(file)
    return pool


def _message(package: str, name: str, fields: dict[str, tuple[int, str]]) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for field_name, (number, kind) in fields.items():
        type_name = kind.removeprefix("repeated ")
        is_repeated = kind != type_name
        label = FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL
        field = message.field.add(name=field_name, number=number, label=label)
        if type_name in _TYPES:
            field.type = _TYPES[type_name]
        else:
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{type_name}"
    return message


_POOL = _make_pool()

WriteRequest: Any = GetMessageClass(_POOL.FindMessageTypeByName("prometheus.WriteRequest"))
"""A request of version 1.0."""

Label: Any = GetMessageClass(_POOL.FindMessageTypeByName("prometheus.Label"))
"""A label of version 1.0."""

Request: Any = GetMessageClass(_POOL.FindMessageTypeByName("io.prometheus.write.v2.Request"))
"""A request of version 2.0."""
