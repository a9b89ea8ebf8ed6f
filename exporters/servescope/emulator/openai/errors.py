"""The answers to requests that cannot be served: status, and an error in OpenAI's shape."""

from __future__ import annotations

import json

_LONGEST_QUOTE = 80


class ApiError(Exception):
    """A request is refused or has failed; `body` is the answer's."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def quote(value: object) -> str:
    """A value of the request as JSON, short enough for a message."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def kind_of(value: object) -> str:
    """What a value of the request is, in the words of OpenAI's messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a decimal"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def missing(param: str) -> ApiError:
    """A parameter that must be there is not."""
    return ApiError(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """A parameter is of another type than the one expected."""
    message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
    return ApiError(400, message, param=param, code="invalid_type")


def wrong_value(param: str, value: object, supported: tuple[str, ...]) -> ApiError:
    """A parameter is none of the values there are."""
    listed = ", ".join(f"'{one}'" for one in supported)
    message = f"Invalid value for '{param}': {quote(value)}. Supported values are: {listed}."
    return ApiError(400, message, param=param, code="invalid_value")


def out_of_range(
    param: str, value: float, *, low: int | None = None, high: int | None = None, number: str = "integer"
) -> ApiError:
    """A number is below the lowest or above the highest there may be; that one is given, and what `number` it is."""
    if low is not None:
        side, bound, expected = "below minimum", "below_min", f">= {low}"
    else:
        side, bound, expected = "above maximum", "above_max", f"<= {high}"
    message = f"Invalid '{param}': {number} {side} value. Expected a value {expected}, but got {quote(value)} instead."
    return ApiError(400, message, param=param, code=f"{number}_{bound}_value")


def wrong_length(param: str, count: int, *, low: int | None = None, high: int | None = None) -> ApiError:
    """An array is shorter or longer than it may be; that bound is given."""
    if low is not None:
        code = "empty_array" if count == 0 else "array_below_min_length"
        bound = f"minimum length {low}"
    else:
        code, bound = "array_above_max_length", f"maximum length {high}"
    message = f"Invalid '{param}': expected an array with {bound}, but got an array with length {count} instead."
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """The emulator does not do that, and says why."""
    return ApiError(400, f"Unsupported parameter: '{param}'. {why}", param=param, code="unsupported_parameter")


def unknown_parameter(param: str) -> ApiError:
    """OpenAI knows no such parameter, and neither do the servers that extend it."""
    return ApiError(400, f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def unknown_model(model: str, known: tuple[str, ...]) -> ApiError:
    """There is no such model; those there are, are named."""
    listed = ", ".join(f"`{one}`" for one in known)
    message = f"The model `{model[:_LONGEST_QUOTE]}` does not exist or you do not have access to it; there is {listed}."
    return ApiError(404, message, param="model", code="model_not_found")


def unknown_url(method: str, path: str) -> ApiError:
    """There is nothing at that address."""
    message = f"Unknown request URL: {method} {path[:_LONGEST_QUOTE]}. Please check the URL for typos."
    return ApiError(404, message, code="unknown_url")


def bad_body(why: str) -> ApiError:
    """The body is no JSON object."""
    return ApiError(
        400, f"We could not parse the JSON body of your request. ({why}) The OpenAI API expects a JSON object."
    )


def too_large(limit_bytes: int) -> ApiError:
    """The body is longer than is read."""
    return ApiError(
        413, f"The request body is too large: at most {limit_bytes} bytes are read.", code="request_too_large"
    )


def too_long(param: str, limit: int, prompt: int, answer: int) -> ApiError:
    """Prompt and answer do not fit the context of `limit` tokens."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + answer} tokens "
        f"({prompt} in the {param}, {answer} in the completion). Please reduce the length of the {param} or completion."
    )
    return ApiError(400, message, param=param, code="context_length_exceeded")


def unauthorized(given: str | None) -> ApiError:
    """The key is missing or is not the server's."""
    if given is None:
        message = (
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
            "auth (i.e. Authorization: Bearer YOUR_KEY)."
        )
        return ApiError(401, message)
    return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")


def refused(why: str) -> ApiError:
    """There is no room for the request now."""
    return ApiError(429, why, kind="requests", code="rate_limit_exceeded")


def failed() -> ApiError:
    """The engine failed while it served the request."""
    message = "The server had an error while processing your request. Sorry about that!"
    return ApiError(500, message, kind="server_error")
