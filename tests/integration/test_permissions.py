"""The rules of docs/guides/permissions.md on real servers: with them a role works, and with one less it does not."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import confluent_kafka as kafka
import pulsar
import pytest
import redis
import yaml
from confluent_kafka.admin import AclBindingFilter, AclOperation, AdminClient, NewTopic, ResourceType

import claimcheck
from claimcheck._operate.sweep import check_clock
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from claimcheck.cli._check import examine
from claimcheck.errors import ClaimCheckError, PayloadError, PayloadNotFoundError, StoreError
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.local import LocalBroker
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests import servers
from tests.check_rig import diagnosed
from tests.docs_pages import ROOT, blocks
from tests.integration.kafka_rig import authority_of, grant, login
from tests.unit.cli.rig import run

PAGE = "docs/guides/permissions.md"
DAY = 86_400
_quiet = logging.getLogger("kafka-client-of-permissions")
_quiet.setLevel(logging.CRITICAL + 1)
USER, PASSWORD = "app", "correct-horse"
SMALL, LARGE = b"small" * 100, os.urandom(20_000_000)


def lines(beginning: str) -> Iterator[list[str]]:
    """Yield the commands of the page that begin with this text, as words."""
    for block in blocks(PAGE):
        for line in block.code.replace("\\\n", " ").splitlines():
            if line.startswith(beginning):
                yield shlex.split(line)


# Roles ---------------------------------------------------------------------------------------------------------------


class RefusedError(Exception):
    """A role could not do all that it has to."""


def old(cc: claimcheck.ClaimCheck, payload: bytes) -> Pointer:
    """Write a payload two days ago."""
    store = cc.store("hot")
    store.context = StoreContext(name="hot", clock=lambda: time.time() - 2 * DAY)
    return store.write(payload, destination="orders")


def command(path: Path, *arguments: object) -> Any:
    """Run a command with the configuration at this place, and return its report."""
    result = run("--config", path, *arguments, "--json")
    if result.exit_code:
        raise RefusedError(result.output)
    return json.loads(result.stdout)


class Store:
    """A store as the operator sees it, and what each role does with it.

    Attributes:
        recent: So many leftovers of `expired` at least are younger than the default grace period.
    """

    recent = 0

    def __init__(self, options: dict[str, Any], here: Path) -> None:
        self.options, self.here, self.path = options, here, here / "claimcheck.yaml"
        self.cc = claimcheck.from_dict({"stores": {"hot": options}})

    def writer(self, options: dict[str, Any]) -> None:
        with claimcheck.from_dict({"stores": {"hot": options}}) as cc:
            store = cc.store("hot")
            for payload in (b"", SMALL, LARGE):
                store.write(payload)
                store.rollback(store.write(payload))
            self.break_off(store)

    def break_off(self, store: Any) -> None:
        """Fail in the middle of a write, which deletes what it wrote."""
        with pytest.raises(PayloadError, match="unplugged") as raised:
            store.write(Unplugged())
        if notes := getattr(raised.value, "__notes__", ()):
            raise RefusedError(*notes)

    def reader(self, options: dict[str, Any]) -> None:
        small, large, empty, *gone = (self.cc.store("hot").write(each) for each in (SMALL, LARGE, b"", SMALL, LARGE))
        for each in gone:
            self.cc.store("hot").rollback(each)
        with claimcheck.from_dict({"stores": {"hot": options}}) as cc:
            store = cc.store("hot")
            assert [store.read(each) for each in (small, large, empty)] == [SMALL, LARGE, b""]
            assert store.read_range(large, 5_000_000, 10) == LARGE[5_000_000:5_000_010]
            for each in gone:
                try:
                    store.read(each)
                except PayloadNotFoundError:
                    continue
                raise RefusedError("a payload that is gone was read")

    def sweep(self, options: dict[str, Any]) -> None:
        expected = self.expired()
        self.path.write_text(yaml.safe_dump({"stores": {"hot": options}}))
        reports = [command(self.path, "sweep", "--yes", *grace) for grace in ((), ("--grace", "0s"))]
        deleted = [report["stores"][0]["deleted"] for report in reports]
        assert sum(deleted) == expected  # and not less in silence
        assert deleted[1] >= self.recent
        self.notice_clock(options)

    def notice_clock(self, options: dict[str, Any]) -> None:
        """Delete nothing by a clock that is ahead."""
        with claimcheck.from_dict({"stores": {"hot": options}}) as cc:
            try:
                check_clock(cc.store("hot"), time.time() + 3600)
            except StoreError:
                return
        raise RefusedError("a clock that is ahead was not noticed")

    def expired(self) -> int:
        """Make what a sweep has to delete, and return how much it is."""
        raise NotImplementedError

    def collector(self, options: dict[str, Any]) -> None:
        self.path.write_text(yaml.safe_dump({"stores": {"hot": options}}))
        with LocalBroker(self.here / "broker.sqlite") as broker:
            if "orders" not in broker.topics():
                broker.create_topic("orders")
        place = ("gc", "--local", self.here / "broker.sqlite", "--topic", "orders")
        for attempt in range(2):  # the first one writes the record, the second one renews it
            for payload in (SMALL, LARGE):
                old(self.cc, payload)
            report = command(self.path, *place, "--yes", "--force", *([] if attempt else ["--claim"]))
            if report["stores"][0]["deleted"] != 2:
                raise RefusedError(report)
        self.forget()
        self.notice_clock(options)

    def forget(self) -> None:
        """Delete the record of who collects."""
        raise NotImplementedError

    def checker(self, options: dict[str, Any]) -> None:
        found = {each.id for each in diagnosed({"stores": {"hot": options}}).findings}
        if bad := {each for each in found if each.endswith(("-failed", "-not-examined", "-not-listable"))}:
            raise RefusedError(bad)
        self.reader(options)  # payloads of a topic


class Unplugged:
    """A large payload whose source fails before its end."""

    def __init__(self) -> None:
        self.left = LARGE

    def read(self, size: int) -> bytes:
        if not self.left:
            raise OSError("unplugged")
        piece, self.left = self.left[:size], self.left[size:]
        return piece


ROLES = ("writer", "reader", "sweep", "collector", "checker")


def check_smallest(rules: list[str], act: Callable[[list[str]], None]) -> None:
    """Act with these rules, and fail to with any one less."""
    act(rules)
    for each in rules:
        less = [other for other in rules if other != each]
        try:
            act(less)
        except (ClaimCheckError, RefusedError):
            continue
        pytest.fail(f"{each} is not needed", pytrace=False)


# Redis ---------------------------------------------------------------------------------------------------------------


class Redis(Store):
    def __init__(self, url: str, here: Path) -> None:
        super().__init__({"type": "redis", "url": url, "ttl_seconds": 7 * DAY, "segment_bytes": 100_000}, here)
        self.admin = redis.Redis.from_url(url)

    def expired(self) -> int:
        """Redis deletes expired payloads itself, but not those that lost their expiry; one lost a segment, too."""
        self.admin.set("claimcheck:of-others-0", b"kept")
        pointers = [old(self.cc, payload) for payload in (SMALL, LARGE)]
        for pointer in pointers:
            aged = re.sub(r"-\d{8}T", "-20200101T", pointer.key)
            for number in range(pointer.segments):
                self.admin.rename(f"{pointer.key}-{number}", f"{aged}-{number}")
                self.admin.persist(f"{aged}-{number}")
        self.admin.delete(f"{aged}-7")
        return len(pointers)

    def sweep(self, options: dict[str, Any]) -> None:
        super().sweep(options)
        assert self.admin.keys() == [b"claimcheck:of-others-0"]

    def forget(self) -> None:
        self.admin.unlink(*self.admin.keys("claimcheck:gc-*"))


@pytest.mark.parametrize("role", ROLES)
def test_redis(role, own_redis, tmp_path):
    lab = Redis(servers.redis_url(own_redis), tmp_path)
    rules = [rule for words in lines("ACL SETUSER") if words[2] == role for rule in words[3:]]
    commands = [each for each in rules if each.startswith("+")]
    options = {**lab.options, "url": f"redis://{role}:PASSWORD@127.0.0.1:{own_redis.port}/0"}

    def act(some: list[str]) -> None:
        lab.admin.flushdb()
        lab.admin.execute_command(
            "ACL", "SETUSER", role, "reset", *(each for each in rules if each not in commands), *some
        )
        getattr(lab, role)(options)

    with lab.cc:
        check_smallest(commands, act)


def test_redis_cluster_and_databases(redis_cluster, own_redis):
    """What the page adds for them: with it a writer and a reader work, without it they do not."""
    text = (ROOT / PAGE).read_text()
    (cluster,), (database,) = re.findall(r"`(\+command [^`]+)`", text), re.findall(r"`(\+select)`", text)
    common = ["~claimcheck:*", "+set", "+unlink", "+get", "+getrange", "+strlen", "+exists"]
    places = {cluster: (redis_cluster.nodes, redis_cluster.url), database: ([own_redis], servers.redis_url(own_redis))}
    for more, (nodes, url) in places.items():
        user = f"user-{uuid.uuid4().hex}"
        address = url.replace("://", f"://{user}:{PASSWORD}@").replace("/0", "/3")
        for rules, works in ((common, False), ([*common, *more.split()], True)):
            for node in nodes:
                with redis.Redis(port=node.port) as admin:
                    admin.execute_command("ACL", "SETUSER", user, "reset", "on", f">{PASSWORD}", *rules)
            with (
                claimcheck.from_dict({"stores": {"hot": {"type": "redis", "url": address}}}) as cc,
                contextlib.nullcontext() if works else pytest.raises(StoreError),
            ):
                assert cc.store("hot").read(cc.store("hot").write(LARGE)) == LARGE


# S3 ------------------------------------------------------------------------------------------------------------------

NEEDS = {  # statements of the page
    "writer": ("Writer",),
    "reader": ("Reader",),
    "sweep": ("Sweep",),
    "collector": ("Sweep", "Collector"),
    "checker": ("Writer", "Reader", "Sweep", "Checker"),
}
ACTIONS = {  # of operations whose permission has another name
    "AbortMultipartUpload": "AbortMultipartUpload",
    "CompleteMultipartUpload": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "HeadBucket": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectsV2": "ListBucket",
    "ListParts": "ListMultipartUploadParts",
    "UploadPart": "PutObject",
}


class S3(Store):
    recent = 1  # moto believes that an upload without parts is old

    def __init__(self, endpoint_url: str, bucket: str, here: Path) -> None:
        place = {"endpoint_url": endpoint_url, "prefix": "claims"}
        super().__init__({"type": "s3", "bucket": bucket, **place, "ttl_seconds": 7 * DAY}, here)
        self.client = boto3.client("s3", endpoint_url=endpoint_url)
        self.bucket = bucket

    def expired(self) -> int:
        """Two payloads, and uploads that were interrupted, beside one of others."""
        self.interrupt("claims/of-others")
        with claimcheck.from_dict({"stores": {"hot": self.options | {"ttl_seconds": 3600}}}) as cc:
            pointers = [old(cc, payload) for payload in (SMALL, LARGE)]
        self.interrupt(pointers[0].key)
        self.client.create_multipart_upload(Bucket=self.bucket, Key=pointers[1].key)  # without a part
        return len(pointers) + 2

    def interrupt(self, key: str) -> None:
        """Leave an upload without its end."""
        upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        self.client.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"part")

    def forget(self) -> None:
        for found in self.client.list_objects_v2(Bucket=self.bucket, Prefix="claims/gc-")["Contents"]:
            self.client.delete_object(Bucket=self.bucket, Key=found["Key"])


def limited() -> dict[str, str]:
    """Log in as a user who may do what policies allow."""
    return {"aws_access_key_id": USER, "aws_secret_access_key": PASSWORD}


def statements(role: str) -> list[dict[str, Any]]:
    (text,) = [block.code for block in blocks(PAGE) if block.language == "json" and "Writer" in block.code]
    return [each for each in json.loads(text)["Statement"] if each["Sid"] in NEEDS[role]]


@pytest.fixture(scope="module")
def gateway(s3_programs):
    """An S3 gateway with a user, who may do what the policies of buckets allow."""
    with servers.s3() as server:
        login = ["-a", server.access_key, "-s", server.secret_key, "--endpoint-url", server.endpoint_url]
        user = ["-a", USER, "-s", PASSWORD, "-r", "user"]
        subprocess.run(["versitygw", "admin", *login, "create-user", *user], check=True, timeout=60)
        yield server


@pytest.mark.parametrize("role", ["writer", "reader", "sweep", "collector"])
def test_s3_policies_are_the_smallest(role, gateway, tmp_path):
    """The checker is not among them: this server has no lifecycle rules."""
    lab = S3(gateway.endpoint_url, f"payloads-{role}", tmp_path)
    lab.client.create_bucket(Bucket=lab.bucket)
    rules = [(number, action) for number, each in enumerate(statements(role)) for action in each["Action"]]
    if role == "collector":
        rules.remove((0, "s3:AbortMultipartUpload"))
        pointer = old(lab.cc, SMALL)
        lab.cc.store("hot").rollback(pointer)
        lab.interrupt(pointer.key)
    if role == "reader":  # Amazon's server needs it to answer that an object does not exist
        rules.remove((0, "s3:ListBucket"))

    def act(some: list[tuple[int, str]]) -> None:
        allowed = [
            each | {"Principal": {"AWS": [USER]}, "Action": [action for at, action in some if at == number]}
            for number, each in enumerate(statements(role))
        ]
        text = json.dumps({"Version": "2012-10-17", "Statement": [each for each in allowed if each["Action"]]})
        lab.client.delete_bucket_policy(Bucket=lab.bucket)
        if some:
            lab.client.put_bucket_policy(Bucket=lab.bucket, Policy=text.replace(":::payloads", f":::{lab.bucket}"))
        getattr(lab, role)(lab.options | {"client": f"{__name__}:limited"})

    with lab.cc:
        check_smallest(rules, act)


CALLED: dict[str, Any] = {}


def recording() -> Any:
    """Make a client that notes the names of its operations."""
    client = boto3.client("s3", endpoint_url=CALLED["endpoint_url"])
    client.meta.events.register("before-call.s3", lambda model, **_: CALLED["operations"].add(model.name))
    return client


@pytest.mark.parametrize("role", ROLES)
def test_s3_policies_name_every_action_of_the_code(role, moto_url, tmp_path):
    lab = S3(moto_url, f"payloads-{role}", tmp_path)
    lab.client.create_bucket(Bucket=lab.bucket)
    CALLED.update(endpoint_url=moto_url, operations=set())
    with lab.cc:
        getattr(lab, role)(lab.options | {"client": f"{__name__}:recording"})
    called = {f"s3:{ACTIONS.get(each, each)}" for each in CALLED["operations"]}
    assert called <= {action for each in statements(role) for action in each["Action"]}
    assert called >= {action for each in statements(role) for action in each["Action"] if each["Sid"] == "Checker"}


# Kafka ---------------------------------------------------------------------------------------------------------------

OPERATIONS = {
    "Write": AclOperation.WRITE,
    "Read": AclOperation.READ,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}
RESOURCES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
    "--cluster": ResourceType.BROKER,
}


def acls(role: str) -> list[tuple[Any, str, str]]:
    """Return resource, name and operation of each rule of a role."""
    rules = []
    for words in lines("kafka-acls.sh"):
        options = dict(zip(words, [*words[1:], ""], strict=True))
        if options["--allow-principal"] != f"User:{role}":
            continue
        operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
        named = [(words[at], name) for at, name in enumerate([*words[1:], ""]) if words[at] in RESOURCES]
        rules += [
            (RESOURCES[kind], "kafka-cluster" if kind == "--cluster" else name, operation)
            for kind, name in named
            for operation in operations
        ]
    return rules


class Kafka:
    """A topic with payloads, and what each role does with it."""

    def __init__(self, broker: servers.KafkaBroker, here: Path) -> None:
        self.broker, self.here = broker, here
        self.admin = AdminClient(login(broker))
        claims = str(authority_of(broker).with_name("claims"))
        hot = {"type": "filesystem", "path": claims, "create": True, "ttl_seconds": 6 * DAY}
        self.allowed: list[Any] = []
        self.config = {"stores": {"hot": hot}}
        self.cc = claimcheck.from_dict(self.config)
        (here / "claimcheck.yaml").write_text(yaml.safe_dump(self.config))
        topics = [
            NewTopic(name, 1)
            for name in ("orders", "orders.dlq")
            if name not in self.admin.list_topics(timeout=30).topics
        ]
        for created in self.admin.create_topics(topics).values() if topics else ():
            created.result(30)

    def allow(self, role: str, rules: list[tuple[Any, str, str]]) -> None:
        gone = [
            AclBindingFilter(rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host,
                             rule.operation, rule.permission_type)
            for rule in self.allowed
        ]  # fmt: skip
        for deleted in self.admin.delete_acls(gone).values() if gone else ():
            deleted.result(30)
        self.allowed = grant(self.admin, role, [(kind, name, OPERATIONS[each]) for kind, name, each in rules])

    def send(self, user: str, topic: str, **more: Any) -> None:
        native = kafka.Producer({**login(self.broker, user), "message.timeout.ms": 8000, **more}, logger=_quiet)
        failures: list[str | None] = []
        try:
            with KafkaProducer(native, self.cc) as producer:
                producer.produce(
                    topic, SMALL * 10_000, b"k", on_delivery=lambda error, _: failures.append(error and error.name())
                )
                producer.flush(20)
        except kafka.KafkaException as error:  # a producer with a fatal error; mostly its report comes first
            raise RefusedError(error) from error
        if failures != [None]:
            raise RefusedError(*failures)

    def writer(self) -> None:
        self.send("writer", "orders", **{"enable.idempotence": True})

    def reader(self) -> None:
        self.send("operator", "orders")
        options = {**login(self.broker, "reader"), "group.id": "bookkeeping", "auto.offset.reset": "earliest"}
        native = kafka.Consumer(
            {**options, "enable.auto.offset.store": False, "enable.auto.commit": False}, logger=_quiet
        )
        letters = kafka.Producer({**login(self.broker, "reader"), "message.timeout.ms": 8000}, logger=_quiet)
        with KafkaConsumer(native, self.cc, dead_letter_producer=letters) as consumer:
            consumer.subscribe(["orders"])
            try:
                message = consumer.poll(6)
                if message is None or message.error():
                    raise RefusedError(message and message.error())
                consumer.dead_letter(message, "orders.dlq", reason="a test")
                consumer.commit(message, asynchronous=False)
            except kafka.KafkaException as error:
                raise RefusedError(error) from None

    def collector(self) -> None:
        report = self.command("collector", "gc", "--topic", "orders", "--consumed")
        if "orders.dlq" not in report["topics"]:
            raise RefusedError("payloads of dead letters would be deleted")

    def checker(self) -> None:
        group = kafka.Consumer({**login(self.broker), "group.id": "bookkeeping"}, logger=_quiet)
        group.commit(offsets=[kafka.TopicPartition("orders", 0, 0)], asynchronous=False)
        group.close()
        with claimcheck.from_dict(self.config) as cc:
            target = KafkaTarget(
                self.broker.bootstrap_servers, ("orders",), ("bookkeeping",), login(self.broker, "checker")
            )
            found = [each for each in examine(cc, servers=True, target=target).findings if each.id.startswith("kafka")]
        if any(each.id.endswith(("-not-examined", "-missing", "-unreachable")) for each in found):
            raise RefusedError(found)
        if "kafka-dead-letters" not in {each.id for each in found}:
            raise RefusedError("the dead-letter topic was not examined")

    def redrive(self) -> None:
        self.send("operator", "orders.dlq")
        self.command("redrive", "redrive", "--from", "orders.dlq", "--to", "orders", "--yes", "--force")

    def command(self, user: str, *arguments: str) -> Any:
        (path := self.here / "kafka").write_text("".join(f"{k}={v}\n" for k, v in login(self.broker, user).items()))
        broker = ["--kafka", self.broker.bootstrap_servers, "--kafka-config", path]
        return command(self.here / "claimcheck.yaml", *arguments, *broker)


@pytest.mark.parametrize("role", ["writer", "reader", "collector", "checker", "redrive"])
def test_kafka(role, secure_kafka, tmp_path, monkeypatch):
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 4.0)
    lab, rules = Kafka(secure_kafka, tmp_path), acls(role)
    lab.send("operator", "orders")

    def act(some: list[tuple[Any, str, str]]) -> None:
        lab.allow(role, some)
        getattr(lab, role)()

    with lab.cc:
        check_smallest(rules, act)


# Pulsar --------------------------------------------------------------------------------------------------------------

NAMESPACE = "public/default"


class Pulsar:
    """A topic and its dead-letter topic, and what each role does with them."""

    def __init__(self, secure: servers.SecurePulsar, here: Path) -> None:
        self.secure, self.broker, self.path = secure, secure.open, here / "claimcheck.yaml"
        hot = {"type": "filesystem", "path": str(here / "claims"), "create": True, "ttl_seconds": 7 * DAY}
        side = {"type": "pulsar-topic", "url": self.broker.service_url, "topic": "payloads", "timeout_seconds": 5}
        self.stores = {"hot": hot, "side": side | {"segment_bytes": 50_000}}
        self.path.write_text(yaml.safe_dump({"threshold_bytes": 50_000, "stores": {"hot": hot}}))
        known = self.broker.request("GET", f"persistent/{NAMESPACE}")
        for topic in ("orders", "orders-DLQ", "payloads"):
            if f"persistent://{NAMESPACE}/{topic}" not in known:
                self.broker.request("PUT", f"persistent/{NAMESPACE}/{topic}")
        self.broker.set_policy("payloads", "retention", {"retentionTimeInMinutes": 20_000, "retentionSizeInMB": -1})

    def allow(self, role: str, rules: list[tuple[str, str]]) -> None:
        for place in ("orders", "orders-DLQ", "payloads", None):
            path = f"persistent/{NAMESPACE}/{place}/permissions" if place else f"namespaces/{NAMESPACE}/permissions"
            wanted = [action for at, action in rules if at == (place or NAMESPACE)]
            if role in self.broker.request("GET", path):
                self.broker.request("DELETE", f"{path}/{role}")
            if wanted:
                self.broker.request("POST", f"{path}/{role}", wanted)

    @contextlib.contextmanager
    def client(self, user: str) -> Iterator[pulsar.Client]:
        login = pulsar.AuthenticationToken(self.secure.token(user))
        options = {"authentication": login, "operation_timeout_seconds": 5, "logger": _quiet}
        with contextlib.closing(pulsar.Client(self.broker.service_url, **options)) as client:
            yield client

    def claimcheck(self, user: str, store: str) -> claimcheck.ClaimCheck:
        stores = {**self.stores, "side": self.stores["side"] | {"token": self.secure.token(user)}}
        return claimcheck.from_dict({"store": store, "stores": stores})

    def send(self, user: str, store: str, topic: str = "orders") -> None:
        with (
            self.client(user) as client,
            self.claimcheck(user, store) as cc,
            PulsarProducer(client.create_producer(topic), cc, max_message_bytes=100_000) as producer,
        ):
            producer.send(SMALL * 1000)

    def writer(self) -> None:
        self.send("writer", "side")

    def reader(self) -> None:
        with (
            self.client("reader") as client,
            self.claimcheck("reader", "side") as cc,
            PulsarConsumer(client.subscribe("orders", "bookkeeping"), cc) as consumer,
        ):
            self.send("operator", "side")
            message = consumer.receive(10_000)
            assert message.data() == SMALL * 1000
            consumer.acknowledge(message)

    def collector(self) -> None:
        self.command("collector", "gc", "--topic", "orders", "--consumed", "--admin-url", self.broker.admin_url)

    def redrive(self) -> None:
        self.send("operator", "hot", "orders-DLQ")
        self.command("redrive", "redrive", "--from", "orders-DLQ", "--to", "orders", "--yes", "--force")

    def command(self, user: str, *arguments: str) -> None:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("CLAIMCHECK_PULSAR_TOKEN", self.secure.token(user))
            command(self.path, *arguments, "--pulsar", self.broker.service_url)


def grants(role: str) -> list[tuple[str, str]]:
    """Return topic or namespace and action of each grant of a role."""
    rules = []
    for words in lines("pulsar-admin"):
        if words[words.index("--role") + 1] == role:
            actions = words[words.index("--actions") + 1].split(",")
            rules += [(words[-1].removeprefix(f"persistent://{NAMESPACE}/"), each) for each in actions]
    return rules


@pytest.mark.parametrize("role", ["writer", "reader", "collector", "redrive"])
def test_pulsar(role, secure_pulsar, tmp_path):
    lab = Pulsar(secure_pulsar, tmp_path)

    def act(some: list[tuple[str, str]]) -> None:
        lab.allow(role, some)
        try:
            getattr(lab, role)()
        except pulsar.PulsarException as error:
            raise RefusedError(error) from None

    check_smallest(grants(role), act)
