# An image with Python and pyplaypen; docs/containers.md says how to use it.
#
#   CGO_ENABLED=0 go build -o pyplaypen . && docker build -t pyplaypen .
#
# Any Debian or Ubuntu will do: --build-arg BASE=python:3.13-slim
ARG BASE=debian:trixie-slim
FROM ${BASE} AS runtime

# Each call drops from root to this uid, which nothing else has. An empty
# variable would mean 65534, nobody, which other things may have.
RUN groupadd --gid 10001 pyplaypen \
	&& useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin pyplaypen
ENV PYPLAYPEN_CHILD_UID=10001

RUN command -v python3 >/dev/null \
	|| { apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*; }
COPY pyplaypen /usr/local/bin/pyplaypen

# Where calls can create files, as root and as that uid.
RUN mkdir /work && chown 10001:10001 /work
WORKDIR /work
ENTRYPOINT ["pyplaypen"]
CMD ["enforcement"]

# docker build --target test: what .ci/containers runs. The context holds
# pyplaypen.test, which "CGO_ENABLED=0 go test -c" makes. Builders that build
# every stage pass this one too, so it demands nothing of the context.
FROM runtime AS test
RUN { command -v pgrep && command -v make; } >/dev/null \
	|| { apt-get update && apt-get install -y --no-install-recommends procps make && rm -rf /var/lib/apt/lists/*; }
COPY . /usr/src/pyplaypen
WORKDIR /usr/src/pyplaypen
ENTRYPOINT ["./pyplaypen.test"]
CMD []

# The default: nothing of the tests.
FROM runtime
