# syntax=docker/dockerfile:1
FROM python:3.13.13-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY exporters exporters
COPY app app
COPY alerts alerts
COPY dashboards dashboards
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13.13-slim-trixie
COPY requirements.lock ./
# The versions that were tested, checked by their hashes. pip cannot take a part of a lock, so the extras that no service
# needs come along: a few megabytes, as the large one of them, pyarrow, is a dependency of the console's anyway.
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement requirements.lock
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps /wheels/servescope-*.whl
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin servescope \
    && install --directory --owner=servescope --group=servescope /var/lib/servescope /var/lib/emulated /var/lib/customers
ENV HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/servescope
ENTRYPOINT ["servescope"]
CMD ["--help"]
