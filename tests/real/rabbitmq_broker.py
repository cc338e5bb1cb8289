"""RabbitMQ, with an Erlang port mapper of its own that ends with it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from tests.real.process import Location, accepts_connections, running

_DEBIAN = "/usr/lib/rabbitmq/bin"  # the program on PATH is a wrapper that only root may run


@contextlib.contextmanager
def rabbitmq() -> Iterator[str]:
    """Run a broker without plugins and yield its AMQP URL."""
    program = shutil.which("rabbitmq-server", path=_DEBIAN) or "rabbitmq-server"
    with running(lambda at: ["epmd", "-address", "127.0.0.1", "-port", str(at.port)], accepts_connections) as mapper:

        def command(location: Location) -> list[str]:
            folder = location.folder
            (folder / "plugins").write_text("[].")
            (folder / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{location.port}\n")
            variables = {
                "HOME": folder,
                "ERL_EPMD_PORT": mapper.port,
                "RABBITMQ_NODENAME": f"test{location.port}@localhost",
                "RABBITMQ_DIST_PORT": location.extra_port,
                "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
                "RABBITMQ_CONF_ENV_FILE": folder / "none",
                "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
                "RABBITMQ_MNESIA_BASE": folder / "data",
                "RABBITMQ_LOG_BASE": folder,
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_PID_FILE": folder / "pid",
            }
            return ["env", *(f"{name}={value}" for name, value in variables.items()), program]

        with running(command, accepts_connections) as server:
            yield f"amqp://127.0.0.1:{server.port}/"
