"""An event loop in its own thread, for the blocking hooks of asyncio clients."""

import asyncio
import contextlib
import threading

SECONDS = 60


@contextlib.contextmanager
def running_loop():
    """Yield a function that runs a coroutine on the loop and waits for its result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()
