# SPDX-License-Identifier: PostgreSQL
"""Settings for Django's own suite: PostgreSQL, with the database that is given, which has the contract, as the tests' own (--keepdb); and a runner that says what became
of each test."""

import json
import os
import unittest

from django.test.runner import DiscoverRunner

NAME = os.environ["DATABASE_NAME"]
DATABASES = {
    alias: {
        "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "HOST": "127.0.0.1", "PORT": os.environ["DATABASE_PORT"], "USER": "postgres",
        "TEST": {"NAME": name},
    }
    for alias, name in (("default", NAME), ("other", f"{NAME}_other"))
}  # fmt: skip
SECRET_KEY = "django_tests_secret_key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "settings.Runner"


class Result(unittest.TextTestResult):
    """By its name, where a test with a failed part has failed."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.outcomes = {}

    def note(self, test, outcome):
        name = test.id()
        if self.outcomes.get(name) != "failed":
            self.outcomes[name] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passed")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "passed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "failed")


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result

    def suite_result(self, suite, result, **named):
        with open(os.environ["OUTCOMES"], "w") as file:
            json.dump(sorted(result.outcomes.items()), file)
        return super().suite_result(suite, result, **named)
