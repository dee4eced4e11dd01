"""What may be asked of the engine through the filter, and what may not: the whole table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.compose.socket_filter.requests import RequestForbidden, RequestKind, read
from tests.support.agent_container_request import a_bind, agent_body
from tests.support.swarm_service_request import sent_for_a_run, service_body

OURS = {"andy.install": "x", "andy.group": "g", "andy.run": "r"}
CREATE = "/v1.41/containers/create?name=andy-family-r1"
NETWORK = {
    "Name": "andy-0123456789ab.family",
    "Driver": "bridge",
    "Options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    "CheckDuplicate": True,
    "Labels": {"andy.install": "0123456789ab"},
    "Internal": True,
}


def asked(method: str, target: str, document: Any = None) -> Any:
    return read(method, target, b"" if document is None else json.dumps(document).encode())


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", "/version", RequestKind.ASK),
        ("GET", "/v1.41/_ping", RequestKind.ASK),
        ("GET", "/v1.41/images/andy-agent:latest/json", RequestKind.INSPECT_IMAGE),
        (
            "GET",
            "/v1.41/containers/json?limit=-1&all=1&size=0&trunc_cmd=0&filters={}",
            RequestKind.LIST_CONTAINERS,
        ),
        ("GET", "/v1.41/containers/abc/json", RequestKind.INSPECT_CONTAINER),
        ("POST", "/v1.41/containers/abc/start", RequestKind.START_CONTAINER),
        ("POST", "/v1.41/containers/abc/stop?t=2", RequestKind.USE_CONTAINER),
        ("POST", "/v1.41/containers/abc/wait", RequestKind.USE_CONTAINER),
        ("POST", "/v1.41/containers/abc/attach?stdin=1&stdout=1&stderr=1&stream=1", RequestKind.ATTACH),
        ("GET", "/v1.41/containers/abc/logs?follow=1&stdout=1&stderr=1", RequestKind.USE_CONTAINER),
        ("DELETE", "/v1.41/containers/abc?v=True&link=False&force=True", RequestKind.USE_CONTAINER),
        ("GET", "/v1.41/networks?filters=%7B%7D", RequestKind.LIST_NETWORKS),
        ("GET", "/v1.41/networks/andy-0123456789ab.family", RequestKind.INSPECT_NETWORK),
        ("DELETE", "/v1.41/networks/abc", RequestKind.REMOVE_NETWORK),
        ("GET", "/v1.41/info", RequestKind.ASK_SWARM),
        ("GET", "/v1.41/nodes", RequestKind.LIST_NODES),
        ("GET", "/v1.41/services?filters=%7B%7D", RequestKind.LIST_SERVICES),
        ("GET", "/v1.41/tasks", RequestKind.LIST_TASKS),
        ("GET", "/v1.41/secrets", RequestKind.LIST_SECRETS),
        ("DELETE", "/v1.41/services/abc", RequestKind.REMOVE_SERVICE),
        ("DELETE", "/v1.41/secrets/abc", RequestKind.REMOVE_SECRET),
    ],
)
def test_what_andy_uses_is_allowed(method, target, kind):
    assert asked(method, target).kind is kind


def test_an_image_by_its_digest_is_asked_for_as_docker_py_writes_it():
    digest = f"sha256:{'a' * 64}"
    made = asked("GET", f"/v1.41/images/registry:5000/andy-agent%40{digest}/json")

    assert made.ref == f"registry:5000/andy-agent@{digest}"
    assert made.target == f"/v1.41/images/registry:5000/andy-agent@{digest}/json"


def test_a_container_of_the_template_is_written_anew_with_all_its_fields():
    made = asked("POST", CREATE, agent_body())

    assert made.kind is RequestKind.CREATE_CONTAINER
    assert made.target == CREATE
    assert json.loads(json.dumps(made.body)) == agent_body()


def test_a_network_of_the_template_is_written_anew_with_all_its_fields():
    assert asked("POST", "/v1.41/networks/create", NETWORK).body == NETWORK


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1.41/containers/abc/exec"),
        ("POST", "/v1.41/exec/abc/start"),
        ("POST", "/v1.41/containers/abc/kill"),
        ("POST", "/v1.41/containers/abc/update"),
        ("POST", "/v1.41/containers/abc/rename?name=x"),
        ("POST", "/v1.41/containers/abc/restart"),
        ("POST", "/v1.41/containers/prune"),
        ("GET", "/v1.41/containers/abc/archive?path=/"),
        ("PUT", "/v1.41/containers/abc/archive?path=/"),
        ("GET", "/v1.41/containers/abc/export"),
        ("GET", "/v1.41/containers/abc/attach/ws"),
        ("POST", "/v1.41/images/create?fromImage=evil"),
        ("GET", "/v1.41/images/json"),
        ("DELETE", "/v1.41/images/andy-agent:latest"),
        ("POST", "/v1.41/images/load"),
        ("POST", "/v1.41/images/andy-agent:latest/tag?repo=x"),
        ("POST", "/v1.41/build"),
        ("POST", "/v1.41/commit?container=abc"),
        ("GET", "/v1.41/volumes"),
        ("POST", "/v1.41/volumes/create"),
        ("POST", "/v1.41/networks/prune"),
        ("GET", "/v1.41/events"),
        ("GET", "/v1.41/system/df"),
        ("POST", "/v1.41/swarm/init"),
        ("GET", "/v1.41/swarm"),
        ("POST", "/v1.41/swarm/join"),
        ("POST", "/v1.41/swarm/leave"),
        ("GET", "/v1.41/swarm/unlockkey"),
        ("POST", "/v1.41/nodes/abc/update?version=1"),
        ("DELETE", "/v1.41/nodes/abc"),
        ("POST", "/v1.41/services/abc/update?version=1"),
        ("GET", "/v1.41/services/abc"),
        ("GET", "/v1.41/services/abc/logs"),
        ("GET", "/v1.41/tasks/abc/logs"),
        ("POST", "/v1.41/secrets/abc/update?version=1"),
        ("POST", "/v1.41/configs/create"),
        ("GET", "/v1.41/configs"),
        ("POST", "/v1.41/plugins/pull?remote=x"),
        ("POST", "/v1.41/auth"),
        ("POST", "/v1.41/session"),
        ("PUT", "/v1.41/containers/abc/start"),
        ("CONNECT", "docker:80"),
        ("OPTIONS", "*"),
    ],
)
def test_what_andy_does_not_use_is_refused(method, target):
    with pytest.raises(RequestForbidden, match="nothing that Andy needs"):
        asked(method, target)


@pytest.mark.parametrize(
    "target",
    [
        "/v1.41/containers/abc/../../images/create",
        "/v1.41//containers/abc/start",
        "/v1.41/containers/abc%2Fexec/start",
        "/v1.41/containers/%61bc/start",
        "/v1.41/containers/abc/start/",
        "/v1.41/containers/abc/start#x",
        "/v1.41/containers/abc/start\n",
        "/v1.41/containers/abc\x00/start",
        "/v1.41/containers/../start",
        "/v1.41/containers/-abc/start",
        "/v1.41/v1.41/containers/abc/start",
        "/V1.41/containers/abc/start",
        "http://elsewhere/v1.41/containers/abc/start",
        "/v1.41/containers/abc/START",
    ],
)
def test_a_smuggled_path_is_refused(target):
    with pytest.raises(RequestForbidden):
        asked("POST", target)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1.41/containers/abc/attach?stdin=1&stdout=1&stderr=1&stream=1&detachKeys=x"),
        ("POST", "/v1.41/containers/abc/attach?stdin=1&stdin=1"),
        ("POST", "/v1.41/containers/abc/stop?t=2;signal=KILL"),
        ("POST", "/v1.41/containers/abc/stop?t=2&t=3"),
        ("POST", "/v1.41/containers/abc/start?checkpoint=x"),
        ("DELETE", "/v1.41/containers/abc?link=True"),
        ("POST", "/v1.41/containers/create?name=andy-x&platform=linux"),
        ("POST", "/v1.41/containers/create?name=elsewhere"),
        ("GET", "/v1.41/containers/abc/json?size=1"),
        ("GET", "/v1.41/containers/abc/logs?follow=1&since"),
    ],
)
def test_a_parameter_that_is_not_in_the_table_is_refused(method, target):
    with pytest.raises(RequestForbidden):
        asked(method, target, agent_body() if "create" in target else None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"HostConfig__Privileged": True}, "Privileged"),
        ({"HostConfig__privileged": True}, "privileged"),
        ({"HostConfig__NetworkMode": "host"}, "NetworkMode"),
        ({"HostConfig__NetworkMode": "bridge"}, "NetworkMode"),
        ({"HostConfig__NetworkMode": "container:abc"}, "NetworkMode"),
        ({"HostConfig__NetworkMode": "andy_default"}, "NetworkMode"),
        ({"HostConfig__PidMode": "host"}, "PidMode"),
        ({"HostConfig__IpcMode": "host"}, "IpcMode"),
        ({"HostConfig__UTSMode": "host"}, "UTSMode"),
        ({"HostConfig__UsernsMode": "host"}, "UsernsMode"),
        ({"HostConfig__CgroupParent": "/"}, "CgroupParent"),
        ({"HostConfig__CapAdd": ["SYS_ADMIN"]}, "CapAdd"),
        ({"HostConfig__CapDrop": []}, "CapDrop"),
        ({"HostConfig__CapDrop": ["NET_RAW"]}, "CapDrop"),
        ({"HostConfig__SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]}, "SecurityOpt"),
        ({"HostConfig__SecurityOpt": ["apparmor=unconfined"]}, "SecurityOpt"),
        ({"HostConfig__Devices": [{"PathOnHost": "/dev/sda"}]}, "Devices"),
        ({"HostConfig__DeviceRequests": [{"Count": -1}]}, "DeviceRequests"),
        ({"HostConfig__Binds": ["/:/host"]}, "Binds"),
        ({"HostConfig__VolumesFrom": ["abc"]}, "VolumesFrom"),
        ({"HostConfig__Runtime": "other"}, "Runtime"),
        ({"HostConfig__Sysctls": {"kernel.x": "1"}}, "Sysctls"),
        ({"HostConfig__ExtraHosts": ["a:1.2.3.4"]}, "ExtraHosts"),
        ({"HostConfig__PortBindings": {"80/tcp": [{}]}}, "PortBindings"),
        ({"HostConfig__PublishAllPorts": True}, "PublishAllPorts"),
        ({"HostConfig__RestartPolicy": {"Name": "always"}}, "RestartPolicy"),
        ({"HostConfig__AutoRemove": True}, "AutoRemove"),
        ({"HostConfig__OomKillDisable": True}, "OomKillDisable"),
        ({"HostConfig__ReadonlyRootfs": False}, "ReadonlyRootfs"),
        ({"HostConfig__Init": False}, "Init"),
        ({"HostConfig__Memory": 0}, "Memory"),
        ({"HostConfig__Memory": 2 * 1024**4}, "Memory"),
        ({"HostConfig__NanoCpus": 1_000 * 10**9}, "NanoCpus"),
        ({"HostConfig__PidsLimit": -1}, "PidsLimit"),
        ({"HostConfig__Dns": ["8.8.8.8"]}, "Dns"),
        ({"HostConfig__LogConfig": {"Type": "syslog", "Config": {}}}, "LogConfig"),
        ({"HostConfig__LogConfig": {"Type": "json-file", "Config": {"labels": "x"}}}, "LogConfig"),
        ({"HostConfig__Tmpfs": {"/etc": "rw"}}, "Tmpfs"),
        ({"HostConfig__Tmpfs": {"/tmp": "rw,exec,suid,dev"}}, "Tmpfs"),
        ({"HostConfig__Mounts": []}, "Mounts"),
        ({"HostConfig__Mounts": [a_bind("relative")]}, "Mounts.0.Source"),
        ({"HostConfig__Mounts": [a_bind("//srv")]}, "Mounts.0.Source"),
        ({"HostConfig__Mounts": [a_bind("/")]}, "Mounts.0.Source"),
        ({"HostConfig__Mounts": [a_bind("/srv", Type="volume")]}, "Mounts.0.Type"),
        ({"HostConfig__Mounts": [a_bind("/srv", VolumeOptions={})]}, "VolumeOptions"),
        ({"HostConfig__Mounts": [a_bind("/srv", BindOptions={"Propagation": "rshared"})]}, "Propagation"),
        (
            {"HostConfig__Mounts": [a_bind("/srv", BindOptions={"Propagation": "private", "Other": True})]},
            "Other",
        ),
        ({"User": "0:0"}, "User"),
        ({"User": "root"}, "User"),
        ({"User": ""}, "User"),
        ({"Entrypoint": ["/bin/sh"]}, "Entrypoint"),
        ({"Cmd": ["x"]}, "Cmd"),
        ({"Volumes": {"/var": {}}}, "Volumes"),
        ({"ExposedPorts": {"80/tcp": {}}}, "ExposedPorts"),
        ({"Healthcheck": {"Test": ["CMD", "x"]}}, "Healthcheck"),
        ({"NetworkingConfig": {"EndpointsConfig": {"host": {}}}}, "NetworkingConfig"),
        ({"Labels": {"andy.install": "x", "andy.group": "g"}}, "Labels"),
        ({"Labels": OURS | {"andy.role": "orchestrator"}}, "andy.role"),
        ({"Labels": OURS | {"com.docker.compose.project": "x"}}, "compose"),
        ({"hostconfig": {"Privileged": True}}, "hostconfig"),
    ],
)
def test_a_container_outside_of_the_template_is_refused(changes, named):
    with pytest.raises(RequestForbidden, match=named):
        asked("POST", CREATE, agent_body(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"Name": "bridge"},
        {"Name": "andy_default"},
        {"Driver": "host"},
        {"Driver": "macvlan"},
        {"Options": {"com.docker.network.bridge.name": "docker0"}},
        {"Options": {"com.docker.network.bridge.host_binding_ipv4": "0.0.0.0"}},
        {"CheckDuplicate": False},
        {"IPAM": {"Config": [{"Subnet": "10.0.0.0/8"}]}},
        {"Attachable": True},
        {"Ingress": True},
        {"Scope": "swarm"},
        {"Labels": {"andy.install": "x", "andy.project": "other"}},
    ],
)
def test_a_network_outside_of_the_template_is_refused(changes):
    with pytest.raises(RequestForbidden):
        asked("POST", "/v1.41/networks/create", NETWORK | changes)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff",
        b'{"Image": NaN}',
        b"[" * 100_000,
        json.dumps(agent_body()).replace('"User"', '"User": "1:1", "User"').encode(),
        json.dumps(agent_body()).encode() + b'{"Privileged": true}',
    ],
)
def test_a_body_that_is_not_one_plain_document_is_refused(body):
    with pytest.raises(RequestForbidden):
        read("POST", CREATE, body)


def test_a_body_where_none_belongs_is_refused():
    with pytest.raises(RequestForbidden, match="not expected"):
        asked("POST", "/v1.41/containers/abc/start", {"HostConfig": {"Privileged": True}})


def test_who_joins_a_network_has_no_address_of_its_choice():
    join = {"Container": "abc", "EndpointConfig": {"Aliases": ["orchestrator"]}}
    plain = {"Container": "abc", "EndpointConfig": {}}
    assert asked("POST", "/v1.41/networks/n/connect", join).body == join
    assert asked("POST", "/v1.41/networks/n/connect", plain).body == plain

    for extra in ({"IPAMConfig": {"IPv4Address": "10.0.0.1"}}, {"Links": ["x"]}, {"MacAddress": "x"}):
        with pytest.raises(RequestForbidden):
            asked("POST", "/v1.41/networks/n/connect", {**join, "EndpointConfig": extra})


@pytest.mark.parametrize("keeps_files", [True, False])
def test_what_the_host_sends_for_a_run_on_a_swarm_is_allowed_and_written_anew(keeps_files):
    sent = sent_for_a_run(keeps_files=keeps_files)

    assert list(sent) == [
        "/networks/create",
        f"/networks/{'n' * 25}/connect",
        "/secrets/create",
        "/services/create",
    ]
    for path, body in sent.items():
        assert json.loads(json.dumps(asked("POST", f"/v1.41{path}", body).body)) == body


IN = "TaskTemplate__ContainerSpec__"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"Name": "elsewhere"}, "Name"),
        ({"Networks": [{"Target": "host"}]}, "Networks"),
        ({"Labels": {}}, "Labels"),
        ({"Labels__andy.project": "other"}, "andy.project"),
        ({"Labels__andy.install": "../../etc"}, "andy.install"),
        ({"Labels__com.docker.stack.namespace": "x"}, "stack"),
        ({"Mode": {"Global": {}}}, "Mode"),
        ({"Mode": {"ReplicatedJob": {}}}, "Mode"),
        ({"Mode__Replicated__Replicas": 2}, "Replicas"),
        ({"EndpointSpec__Mode": "vip"}, "EndpointSpec"),
        ({"EndpointSpec__Ports": [{"TargetPort": 80, "PublishedPort": 80}]}, "Ports"),
        ({"UpdateConfig": {}}, "UpdateConfig"),
        ({"TaskTemplate__PluginSpec": {"Remote": "x"}}, "PluginSpec"),
        ({"TaskTemplate__Runtime": "plugin"}, "Runtime"),
        ({"TaskTemplate__ForceUpdate": 1}, "ForceUpdate"),
        ({"TaskTemplate__RestartPolicy": {"Condition": "any"}}, "RestartPolicy"),
        ({"TaskTemplate__Placement__Constraints": []}, "Constraints"),
        ({"TaskTemplate__Placement__Constraints": ["node.role==manager"]}, "Constraints"),
        ({"TaskTemplate__Placement__Constraints": ["node.id==a", "node.id!=b"]}, "Constraints"),
        ({"TaskTemplate__Placement__Preferences": []}, "Preferences"),
        ({"TaskTemplate__Networks": []}, "Networks"),
        ({"TaskTemplate__Networks": [{"Target": "a"}, {"Target": "b"}]}, "Networks"),
        ({"TaskTemplate__Networks__0__Aliases": ["orchestrator"]}, "Aliases"),
        ({"TaskTemplate__Networks__0__DriverOpts": {}}, "DriverOpts"),
        ({"TaskTemplate__Resources__Limits": {}}, "Limits"),
        ({"TaskTemplate__Resources__Limits__Pids": 0}, "Pids"),
        ({"TaskTemplate__Resources__Limits__MemoryBytes": 0}, "MemoryBytes"),
        ({"TaskTemplate__Resources__Limits__MemoryBytes": 2 * 1024**4}, "MemoryBytes"),
        ({"TaskTemplate__Resources__Limits__NanoCPUs": 1_000 * 10**9}, "NanoCPUs"),
        ({f"{IN}Mounts__1__TmpfsOptions__SizeBytes": 64 * 1024**3}, "SizeBytes"),
        ({"TaskTemplate__Resources__Reservations": {"GenericResources": []}}, "Reservations"),
        ({"TaskTemplate__LogDriver": {"Name": "syslog", "Options": {}}}, "LogDriver"),
        ({"TaskTemplate__LogDriver__Options__max-size": "1000g"}, "max-size"),
        ({f"{IN}Privileges": {"NoNewPrivileges": False}}, "Privileges"),
        ({f"{IN}privileges": {"Seccomp": {"Mode": "unconfined"}}}, "privileges"),
        ({f"{IN}CapabilityAdd": ["SYS_ADMIN"]}, "CapabilityAdd"),
        ({f"{IN}CapabilityDrop": []}, "CapabilityDrop"),
        ({f"{IN}CapabilityDrop": ["NET_RAW"]}, "CapabilityDrop"),
        ({f"{IN}User": "0:0"}, "User"),
        ({f"{IN}User": ""}, "User"),
        ({f"{IN}Groups": ["docker"]}, "Groups"),
        ({f"{IN}ReadOnly": False}, "ReadOnly"),
        ({f"{IN}Init": False}, "Init"),
        ({f"{IN}Command": ["/bin/sh"]}, "Command"),
        ({f"{IN}Args": ["x"]}, "Args"),
        ({f"{IN}Env": ["LD_PRELOAD=x"]}, "Env"),
        ({f"{IN}Dir": "/"}, "Dir"),
        ({f"{IN}TTY": True}, "TTY"),
        ({f"{IN}Hosts": ["1.2.3.4 orchestrator"]}, "Hosts"),
        ({f"{IN}Sysctls": {"kernel.x": "1"}}, "Sysctls"),
        ({f"{IN}Isolation": "process"}, "Isolation"),
        ({f"{IN}Ulimits": []}, "Ulimits"),
        ({f"{IN}Configs": [{"ConfigID": "x"}]}, "Configs"),
        ({f"{IN}DNSConfig__Nameservers": ["8.8.8.8"]}, "Nameservers"),
        ({f"{IN}Labels__andy.role": "orchestrator"}, "andy.role"),
        ({f"{IN}Mounts": []}, "Mounts"),
        ({f"{IN}Mounts__0__Type": "bind"}, "Type"),
        ({f"{IN}Mounts__0__Source": "/etc"}, "Source"),
        ({f"{IN}Mounts__0__Target": "/"}, "Target"),
        ({f"{IN}Mounts__0__BindOptions": {"Propagation": "rshared"}}, "BindOptions"),
        ({f"{IN}Mounts__0__VolumeOptions__DriverConfig": {"Options": {"device": "/"}}}, "DriverConfig"),
        ({f"{IN}Mounts__0__VolumeOptions__Subpath": ".."}, "Subpath"),
        ({f"{IN}Mounts__1__Target": "/etc"}, "Target"),
        ({f"{IN}Mounts__1": {"Type": "npipe", "Target": "x"}}, "Mounts"),
        ({f"{IN}Secrets": []}, "Secrets"),
        ({f"{IN}Secrets__0__File__Name": "/etc/passwd"}, "Name"),
        ({f"{IN}Secrets__0__File__Mode": 0o4755}, "Mode"),
        ({"tasktemplate": {}}, "tasktemplate"),
    ],
)
def test_a_service_outside_of_the_template_is_refused(changes, named):
    with pytest.raises(RequestForbidden, match=named):
        asked("POST", "/v1.41/services/create", service_body(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"Name": "andy-0123456789ab.family"},
        {"Driver": "macvlan"},
        {"Internal": False},
        {"Attachable": False},
        {"Ingress": True},
        {"Scope": "local"},
        {"ConfigFrom": {"Network": "x"}},
        {"Options": {"encrypted": ""}},
        {"Labels": {"andy.install": "0123456789ab"}},
        {"Labels": {"andy.install": "0123456789ab", "andy.group": "g", "andy.project": "other"}},
    ],
)
def test_an_overlay_outside_of_the_template_is_refused(changes):
    with pytest.raises(RequestForbidden):
        asked("POST", "/v1.41/networks/create", sent_for_a_run()["/networks/create"] | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"Name": "elsewhere"},
        {"Driver": {"Name": "vault"}},
        {"Templating": {"Name": "golang"}},
        {"Labels": {}},
        {"Data": "not base 64"},
    ],
)
def test_a_secret_outside_of_the_template_is_refused(changes):
    with pytest.raises(RequestForbidden):
        asked("POST", "/v1.41/secrets/create", sent_for_a_run()["/secrets/create"] | changes)
