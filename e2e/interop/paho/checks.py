"""The checks that there are, and the names that each of them uses."""

from session import Session, properties

CHECKS = []


def check(*versions):
    """Registers a check for some versions, or for all."""

    def register(function):
        CHECKS.append((function, versions or ("3.1", "3.1.1", "5")))
        return function

    return register


class Names:
    """Topics and client ids of one check. 3.1 allows 23 characters in a client id."""

    def __init__(self, version, number):
        self.version = version
        self.number = number

    def topic(self, rest):
        return f"paho/{self.version}/{self.number}/{rest}"

    def session(self, name, **options):
        return Session(self.version, f"paho{self.version}-{self.number}-{name}", **options)

    def was_kept(self, session):
        """Whether CONNACK says so; in 3.1 it does not say."""
        return self.version == "3.1" or session.session_present

    def kept(self, name, **options):
        """A session that outlives its connection."""
        if self.version == "5":
            options["connect"] = properties("CONNECT", SessionExpiryInterval=600)
        return self.session(name, clean=False, **options)
