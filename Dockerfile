# cqueue with its dashboard and spool: docker build --tag cqueue .
# An application's own image: FROM cqueue, COPY shop.py ., CMD ["dispatch", "shop:app"]; see docs/how-to/deploy.md.

# The Python that all tests run on. A digest pins it whole: --build-arg PYTHON=3.11-slim-bookworm@sha256:…
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
# First what changes seldom. Wheels only: nothing of a package runs while it is installed.
COPY docker/requirements.txt docker/build-requirements.txt docker/
RUN pip install --no-cache-dir --only-binary :all: --require-hashes --requirement docker/build-requirements.txt \
    && python -m venv --without-pip /opt/cqueue \
    && pip --python /opt/cqueue/bin/python install --no-cache-dir --only-binary :all: --require-hashes \
        --requirement docker/requirements.txt
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /tmp/wheel . \
    && pip --python /opt/cqueue/bin/python install --no-cache-dir --no-deps --no-index /tmp/wheel/*.whl

FROM python:${PYTHON}
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin cqueue
COPY --from=build /opt/cqueue /opt/cqueue
ENV PATH=/opt/cqueue/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /srv
# Without a shell, so that signals reach it: it drains within its grace.
ENTRYPOINT ["cqueue"]
