# The orchestrator, as 'docker compose up' runs it. The agents' image is container/Dockerfile.
# The first two stages are word for word those of the agents' image: an engine that built one has them for the other.
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS base
COPY container/certificates/ /usr/local/share/ca-certificates/
RUN update-ca-certificates >/dev/null \
 && echo "Installing curl, git, jq and ripgrep …" \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends curl git jq ripgrep >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/* \
 && echo "Compiling the standard library …" \
 && python3 -m compileall -q -j 0 "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# Stages of their own, so that neither pip nor the addresses of a private index reach the image.
FROM base AS packages
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY container/requirements.lock /tmp/requirements.lock
RUN export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 \
 && echo "Installing what both images need …" \
 && python3 -m venv /opt/andy \
 && awk '/^[^ ]/ { wanted = !/^(claude-agent-sdk|pypdf|resvg-py)==/ } wanted' /tmp/requirements.lock >/tmp/shared.lock \
 && /opt/andy/bin/pip install --require-hashes --no-deps --no-cache-dir --no-compile --only-binary :all: \
      --progress-bar off --requirement /tmp/shared.lock \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/(pip|setuptools)/' /opt/andy/lib

FROM packages AS dependencies
# Any text in it installs what writes down voice notes, too: 450 MB.
ARG ANDY_VOICE
COPY requirements-messengers.lock requirements-voice.lock /tmp/
# The Claude SDK and its program, 240 MB, are for the agents' image: no agent runs in this one. Matrix's library needs
# atomicwrites, of which there is no wheel.
RUN export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 \
 && echo "Installing what the orchestrator and its messengers need besides …" \
 && for part in messengers ${ANDY_VOICE:+voice}; do \
      awk '/^[^ ]/ { wanted = !/^claude-agent-sdk==/ } wanted' /tmp/requirements-$part.lock >/tmp/wanted.lock \
      && /opt/andy/bin/pip install --require-hashes --no-deps --no-cache-dir --no-compile \
           --only-binary :all: --no-binary atomicwrites --progress-bar off --requirement /tmp/wanted.lock \
      || exit 1; \
    done \
 && /opt/andy/bin/pip uninstall --quiet --yes pip \
 && echo "Compiling …" \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/andy/lib

FROM base AS orchestrator
# WhatsApp's library needs libmagic.
RUN echo "Installing libmagic …" \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends libmagic1 >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/* /usr/share/man/*
# /run/andy: where the filter's socket lies. A fresh volume there takes this owner and mode.
RUN groupadd --gid 1000 andy \
 && useradd --uid 1000 --gid andy --create-home --shell /bin/bash andy \
 && install --directory --group andy --mode 0750 /run/andy \
 && install --directory --mode 0755 /andy \
 && printf '#!/bin/sh\nexec /opt/andy/bin/python -m orchestrator.compose.entrypoint "$@"\n' >/usr/local/bin/andy \
 && chmod 0755 /usr/local/bin/andy
COPY --from=dependencies /opt/andy /opt/andy
COPY agent_runner/ /app/src/agent_runner/
COPY orchestrator/ /app/src/orchestrator/
RUN python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /app/src

# No code but the image's own is to be imported, wherever a command is given.
ENV PATH=/opt/andy/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/app/src \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
WORKDIR /app
ENTRYPOINT ["andy"]
CMD ["up"]
