"""Apache's command-line tool, command by command, in one JVM per version.

The rows run in order and share a topic, a producer and a consumer that stay online, so that each
command has data to show. A row passes if its output matches what it prints with Apache's broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.results import FAIL, NOT_APPLICABLE, PASS, Cell
from tests.interop.servers import Cluster, apache_home
from tests.interop.toolchain import BUILD, QUICK, Toolchain

SECTION = "mqadmin"
COMMAND_SECONDS = 30
# A stack trace, the help text, or a message about something missing.
TROUBLE = r"(?m)^\s+at [\w.$/]+\(|^\S+Exception\b|usage: mqadmin| not exist"


@dataclass(frozen=True, slots=True)
class Row:
    """One command: its arguments (with ``{fields}``), required and forbidden output."""

    row: str
    arguments: str
    expect: str
    refuse: str = TROUBLE
    seconds: int = COMMAND_SECONDS
    only: tuple[str, ...] = ()
    older: str = ""  # the arguments of 4.9.7, where they differ
    repeats: bool = False  # the command runs until it is stopped
    patience: int = 0  # seconds to repeat a command until a change has spread through the cluster
    fresh: bool = False  # the command keeps clients in static fields: a JVM can run it once


NEWER = ("5.5.0",)
OLDER = ("4.9.7",)

COMMANDS: tuple[Row, ...] = (
    Row("clusterList", "clusterList -n {ns}", r"{cluster}\s+{broker_name}\s+0\s+{broker}\s+V"),
    Row("clusterList -m", "clusterList -n {ns} -m", r"{cluster}\s+{broker_name}\s+\d+"),
    Row("topicList", "topicList -n {ns}", r"(?m)^{topic}\s*$"),
    Row("topicList -c", "topicList -n {ns} -c", r"{cluster}\s+{topic}"),
    Row("topicClusterList", "topicClusterList -n {ns} -t {topic}", r"{cluster}"),
    Row("topicRoute", "topicRoute -n {ns} -t {topic}", r"brokerName.*{broker_name}"),
    Row("topicRoute -l", "topicRoute -n {ns} -t {topic} -l", r"{broker_name}\s.*\s4\s+4\s+6"),
    Row("topicStatus", "topicStatus -n {ns} -t {topic}", r"{broker_name}\s+\d\s+0\s+\d"),
    Row(
        "updateTopic -c",
        "updateTopic -n {ns} -c {cluster} -t {topic}-c -r 6 -w 6",
        r"create topic to {broker} success",
    ),
    Row(
        "updateTopic -b",
        "updateTopic -n {ns} -b {broker} -t {topic}-b -r 3 -w 3 -p 6",
        r"create topic to {broker} success",
    ),
    Row(
        "updateTopicPerm",
        "updateTopicPerm -n {ns} -b {broker} -t {topic}-b -p 4",
        r"update topic perm from 6 to 4 in {broker} success",
    ),
    Row(
        "topicRoute after perm",
        "topicRoute -n {ns} -t {topic}-b -l",
        r"{broker_name}\s.*\s3\s+3\s+4",
        patience=5,
    ),
    Row(
        "updateOrderConf put",
        "updateOrderConf -n {ns} -m put -t {topic} -v {broker_name}:4",
        r"success|{topic}",
    ),
    Row("updateOrderConf get", "updateOrderConf -n {ns} -m get -t {topic}", r"{broker_name}:4"),
    Row(
        "updateOrderConf delete", "updateOrderConf -n {ns} -m delete -t {topic}", r"success|{topic}"
    ),
    Row(
        "deleteTopic",
        "deleteTopic -n {ns} -c {cluster} -t {topic}-c",
        r"delete topic \[{topic}-c\] from cluster \[{cluster}\] success",
    ),
    Row("brokerStatus -b", "brokerStatus -n {ns} -b {broker}", r"(?s)brokerVersionDesc.*putTps"),
    Row("brokerStatus -c", "brokerStatus -n {ns} -c {cluster}", r"bootTimestamp"),
    Row(
        "getBrokerConfig", "getBrokerConfig -n {ns} -b {broker}", r"brokerName\s*=\s*{broker_name}"
    ),
    Row(
        "updateBrokerConfig",
        "updateBrokerConfig -n {ns} -b {broker} -k fileReservedTime -v 71",
        r"update broker config success",
    ),
    Row(
        "getBrokerConfig after update",
        "getBrokerConfig -n {ns} -b {broker}",
        r"fileReservedTime\s*=\s*71",
    ),
    Row("brokerConsumeStats", "brokerConsumeStats -n {ns} -b {broker}", r"{topic}\s.*{group}"),
    Row("statsAll", "statsAll -n {ns} -t {topic}", r"{topic}\s+{group}"),
    Row(
        "producerConnection", "producerConnection -n {ns} -g {producer} -t {topic}", r"@.*JAVA\s+V"
    ),
    Row("consumerConnection", "consumerConnection -n {ns} -g {group}", r"(?s){client}.*{topic}"),
    Row("producer", "producer -n {ns} -b {broker}", r"{producer}"),
    Row("consumerProgress", "consumerProgress -n {ns}", r"{group}\s+1\s"),
    Row("consumerProgress -g", "consumerProgress -n {ns} -g {group}", r"{topic}\s+{broker_name}"),
    Row(
        "consumerProgress -g -t",
        "consumerProgress -n {ns} -g {group} -t {topic}",
        r"{topic}\s+{broker_name}",
        only=NEWER,
    ),
    Row("consumerStatus", "consumerStatus -n {ns} -g {group}", r"{client}"),
    Row(
        "consumerStatus -i -s",
        "consumerStatus -n {ns} -g {group} -i {client} -s",
        r"(?s){topic}.*Consumer jstack",
        refuse=r"SubCommandException",
    ),
    Row(
        "updateSubGroup",
        "updateSubGroup -n {ns} -c {cluster} -g {group}-made -r 7 -q 2",
        r"create subscription group to {broker} success",
    ),
    Row(
        "updateSubGroup -b",
        "updateSubGroup -n {ns} -b {broker} -g {group}-made-b",
        r"create subscription group to {broker} success",
    ),
    Row("getConsumerConfig", "getConsumerConfig -n {ns} -g {group}-made", r"retryMaxTimes\s*=\s*7"),
    Row(
        "deleteSubGroup",
        "deleteSubGroup -n {ns} -c {cluster} -g {group}-made",
        r"delete subscription group \[{group}-made\] .*success",
    ),
    Row(
        "queryMsgById",
        "queryMsgById -n {ns} -t {topic} -i {offset_id}",
        r"(?s){offset_id}.*key-3",
        older="queryMsgById -n {ns} -i {offset_id}",
    ),
    Row("queryMsgByKey", "queryMsgByKey -n {ns} -t {topic} -k key-3", r"{msg_id}\s+\d"),
    Row(
        "queryMsgByUniqueKey",
        "queryMsgByUniqueKey -n {ns} -t {topic} -i {msg_id}",
        r"(?s)key-3.*tag-1",
    ),
    Row(
        "queryMsgByOffset",
        "queryMsgByOffset -n {ns} -t {topic} -b {broker_name} -i {queue_id} -o {queue_offset}",
        r"(?s){msg_id}|{offset_id}",
    ),
    Row("printMsg", "printMsg -n {ns} -t {topic}", r"body-3"),
    Row(
        "printMsgByQueue",
        "printMsgByQueue -n {ns} -t {topic} -a {broker_name} -i {queue_id} -p true -f true",
        r"{msg_id}|tag-1",
    ),
    Row(
        "queryCq",
        "queryCq -n {ns} -t {topic} -q {queue_id} -i {queue_offset} -c 1 -b {broker}",
        r"phyOffset|physicOffset",
    ),
    Row("sendMessage", "sendMessage -n {ns} -t {topic} -p hello -k sent -c tag-9", r"SEND_OK"),
    Row(
        "sendMessage -b -i",
        "sendMessage -n {ns} -t {topic} -p hello -b {broker_name} -i 1",
        r"{broker_name}\s+1\s+SEND_OK",
        fresh=True,
    ),
    Row("consumeMessage", "consumeMessage -n {ns} -t {topic} -c 3", r"(?s)(Consume ok|MSGID)"),
    Row(
        "consumeMessage -b -i -o",
        "consumeMessage -n {ns} -t {topic} -b {broker_name} -i {queue_id} -o 0 -c 1",
        r"(?s)(Consume ok|MSGID)",
        fresh=True,
    ),
    Row("checkMsgSendRT", "checkMsgSendRT -n {ns} -t {topic} -a 3 -s 64", r"Avg RT: \d"),
    Row("sendMsgStatus", "sendMsgStatus -n {ns} -b {broker_name} -s 64 -c 3", r"SEND_OK"),
    Row("allocateMQ", "allocateMQ -n {ns} -t {topic} -i 10.0.0.1,10.0.0.2", r"10\.0\.0\.1"),
    Row(
        "resetOffsetByTime online",
        "resetOffsetByTime -n {ns} -g {group} -t {topic} -s {past} -f true",
        r"(?s)group\[{group}\].*{broker_name}\s+0\s+0",
    ),
    Row(
        "resetOffsetByTime offline",
        "resetOffsetByTime -n {ns} -g {idle} -t {topic} -s {past} -f true",
        r"{broker_name}\s+0\s",
    ),
    Row(
        "skipAccumulatedMessage",
        "skipAccumulatedMessage -n {ns} -g {idle} -t {topic}",
        r"{broker_name}\s+0\s",
    ),
    Row(
        "cloneGroupOffset",
        "cloneGroupOffset -n {ns} -s {group} -d {group}-made-b -t {topic}",
        r"clone group offset success",
    ),
    Row(
        "updateKvConfig",
        "updateKvConfig -n {ns} -s INTEROP -k colour -v blue",
        r"create or update kv config to namespace success",
    ),
    Row(
        "deleteKvConfig",
        "deleteKvConfig -n {ns} -s INTEROP -k colour",
        r"delete kv config from namespace success",
    ),
    Row("getNamesrvConfig", "getNamesrvConfig -n {ns}", r"listenPort"),
    Row("wipeWritePerm", "wipeWritePerm -n {ns} -b {broker_name}", r"wipe write perm .* [1-9]\d*"),
    Row("addWritePerm", "addWritePerm -n {ns} -b {broker_name}", r"add write perm .* [1-9]\d*"),
    Row("cleanExpiredCQ", "cleanExpiredCQ -n {ns} -b {broker}", r"success"),
    Row("cleanUnusedTopic", "cleanUnusedTopic -n {ns} -b {broker}", r"success"),
    Row("deleteExpiredCommitLog", "deleteExpiredCommitLog -n {ns} -b {broker}", r"success"),
    Row("exportMetadata", "exportMetadata -n {ns} -c {cluster} -f {export}", r"export .* success"),
    Row("exportConfigs", "exportConfigs -n {ns} -c {cluster} -f {export}", r"export .* success"),
    Row("exportMetrics", "exportMetrics -n {ns} -c {cluster} -f {export}", r"export .* success"),
    Row(
        "updateTopicList",
        "updateTopicList -n {ns} -b {broker} -f {topics_file}",
        r"success",
        only=NEWER,
    ),
    Row(
        "updateSubGroupList",
        "updateSubGroupList -n {ns} -b {broker} -f {groups_file}",
        r"success",
        only=NEWER,
    ),
    Row(
        "setConsumeMode -b",
        "setConsumeMode -n {ns} -b {broker} -t {topic} -g {idle} -m POP -q 3",
        r"(?s)set consume mode to {broker} success.*{topic}.*POP.*\[3\]",
        only=NEWER,
    ),
    Row(
        "setConsumeMode -c",
        "setConsumeMode -n {ns} -c {cluster} -t {topic} -g {idle} -m PULL -q 0",
        r"(?s)set consume mode to {broker} success.*{topic}.*PULL",
        only=NEWER,
    ),
    Row(
        "consumerProgress in flight",
        "consumerProgress -n {ns} -g {idle}",
        r"(?s)#Inflight.*{topic}\s+{broker_name}.*Consume Inflight Total: 0",
        only=NEWER,
    ),
    Row(
        "exportPopRecord",
        "exportPopRecord -n {ns} -c {cluster}",
        r"Export broker records, brokerName={broker_name}, brokerAddr={broker}",
        only=NEWER,
    ),
    Row(
        "haStatus",
        "haStatus -n {ns} -b {broker}",
        r"MasterAddr|masterCommitLogMaxOffset|role",
        only=NEWER,
    ),
    Row(
        "clusterRT",
        "clusterRT -n {ns} -c {cluster} -a 3 -s 64 -i 1",
        r"{cluster}\s+{broker_name}",
        seconds=6,
        repeats=True,
        fresh=True,
    ),
)


class Mqadmin:
    """The JVM that runs the commands."""

    def __init__(
        self,
        toolchain: Toolchain,
        home: Path | None = None,
        options: tuple[str, ...] = QUICK,
    ) -> None:
        """``home`` is a directory whose ``home/conf/tools.yml`` has the account of the tool."""
        log = BUILD / "logs" / f"mqadmin-{toolchain.version}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors:
            self._jvm = subprocess.Popen(
                toolchain.command("Mqadmin", heap="256m", options=options),
                env={**os.environ, **apache_home(home or BUILD / toolchain.version)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Some commands write files into their working directory.
                cwd=log.parent,
            )

    def call(self, *words: str) -> tuple[bool, str]:
        """Send one line; return whether the command ended by itself, and its output."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        try:
            self._jvm.stdin.write("\t".join(words) + "\n")
            self._jvm.stdin.flush()
            line = self._jvm.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._jvm.wait(10)
            return False, "the command ended the JVM"
        answer = json.loads(line)
        return answer["finished"], answer["output"]

    @property
    def is_alive(self) -> bool:
        """Whether the JVM still answers."""
        return self._jvm.poll() is None

    def close(self) -> None:
        """Stop the JVM with its clients."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the command may have ended the JVM
            self._jvm.stdin.close()
        try:
            self._jvm.wait(20)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()
        self._jvm.stdout.close()


def run_commands(
    toolchain: Toolchain, cluster: Cluster, rows: Sequence[Row], column: str
) -> Iterator[Cell]:
    """Start the clients that the commands inspect, then run the rows; yield a cell for each."""
    suffix = f"{int(time.time()):x}"
    tool = Mqadmin(toolchain)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-mqadmin-") as export:
            fields = _set_up(tool, cluster, suffix, export)
            for row in rows:
                if not tool.is_alive:  # a command ended the JVM and its clients
                    tool.close()
                    tool = Mqadmin(toolchain)
                    suffix += "r"
                    fields = _set_up(tool, cluster, suffix, export)
                if isinstance(fields, str):
                    yield Cell(SECTION, row.row, column, FAIL, fields)
                elif row.fresh:
                    other = Mqadmin(toolchain)
                    yield cell_of(other, toolchain, row, fields, column)
                    other.close()
                else:
                    yield cell_of(tool, toolchain, row, fields, column)
    finally:
        tool.close()


def _set_up(tool: Mqadmin, cluster: Cluster, suffix: str, export: str) -> Mapping[str, str] | str:
    """Set up topic, messages and clients; return the fields for the rows, or an error text."""
    names = {
        "ns": cluster.namesrv,
        "broker": cluster.broker,
        "cluster": cluster.cluster_name,
        "broker_name": cluster.broker_name,
        "topic": f"mq-{suffix}",
        "group": f"mqg-{suffix}",
        "idle": f"mqi-{suffix}",
        "producer": f"mqp-{suffix}",
        "export": export,
        "past": str(int(time.time() * 1000) - 600_000),
    }
    topic, group = names["topic"], names["group"]
    make = f"updateTopic -n {cluster.namesrv} -b {cluster.broker} -t {topic} -r 4 -w 4"
    output = tool.call(str(COMMAND_SECONDS), *make.split())[1]
    ids = tool.call("!30", "producer", cluster.namesrv, names["producer"], topic)[1]
    sent = [line.split() for line in ids.splitlines() if len(line.split()) == 4]
    if len(sent) != 8:
        return f"8 messages for mqadmin could not be sent: {output} {ids}"
    tool.call("!60", "idle", cluster.namesrv, names["idle"], topic)
    client = tool.call("!30", "consumer", cluster.namesrv, group, topic)[1].strip()
    time.sleep(6)  # the consumer commits its offsets every 5 s
    msg_id, offset_id, queue_id, queue_offset = sent[3]
    return {
        **names,
        "client": client,
        "msg_id": msg_id,
        "offset_id": offset_id,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        **_files(export, suffix),
    }


def _files(export: str, suffix: str) -> dict[str, str]:
    topics, groups = f"{export}/topics.json", f"{export}/groups.json"
    with open(topics, "w") as file:  # noqa: PTH123 - the path is passed on a command line as text
        json.dump(
            [{"topicName": f"mq-list-{suffix}", "readQueueNums": 2, "writeQueueNums": 2}], file
        )
    with open(groups, "w") as file:  # noqa: PTH123 - the path is passed on a command line as text
        json.dump([{"groupName": f"mqg-list-{suffix}", "retryMaxTimes": 3}], file)
    return {"topics_file": topics, "groups_file": groups}


def cell_of(
    tool: Mqadmin, toolchain: Toolchain, row: Row, fields: Mapping[str, str], column: str
) -> Cell:
    if row.only and toolchain.version not in row.only:
        reason = f"mqadmin {toolchain.version} has no such command"
        return Cell(SECTION, row.row, column, NOT_APPLICABLE, reason)
    began = time.monotonic()
    older = row.older and toolchain.version in OLDER
    arguments = row.older if older else row.arguments
    words = [word.format_map(fields) for word in shlex.split(arguments)]
    while True:
        finished, output = tool.call(str(row.seconds), *words)
        spent = int((time.monotonic() - began) * 1000)
        problem = judge(row, fields, finished, output)
        if problem is None or spent > row.patience * 1000:
            break
    if problem is None:
        return Cell(SECTION, row.row, column, PASS, output.strip(), spent)
    # The last cause of a stack trace is the most useful; the matrix has space for a few lines.
    printed = output[output.rfind("Caused by:") :] if "Caused by:" in output else output
    return Cell(SECTION, row.row, column, FAIL, f"{problem}; it printed: {printed.strip()}", spent)


def judge(row: Row, fields: Mapping[str, str], finished: bool, output: str) -> str | None:
    """The problem with an output, or None."""
    if not finished and not row.repeats:
        return f"not finished after {row.seconds} s"
    if (trouble := re.search(row.refuse, output)) is not None:
        return f"the output has {trouble.group()!r}"
    # Only our field names are substituted: a pattern may contain other braces.
    pattern = re.sub(r"\{([a-z_]+)\}", lambda field: re.escape(fields[field.group(1)]), row.expect)
    if re.search(pattern, output) is None:
        return f"nothing matches {pattern!r}"
    return None
