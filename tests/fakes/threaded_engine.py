"""A module that starts a thread when it is imported: no process that holds it may be forked."""

import threading
import time

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def main() -> None:
    time.sleep(600)


if __name__ == "__main__":
    main()
