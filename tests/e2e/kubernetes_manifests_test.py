#!/usr/bin/env python3
"""Checks deploy/kubernetes/ without a cluster.

    kubernetes_manifests_test.py LOCKSTEP MANIFEST_DIR

Core objects and every pod template against the Kubernetes API's own schemas (strictly: an unknown
field is an error), MPIJobs against the fields of kubeflow.org/v2beta1, the program's flags against
the program, and what the pieces must agree on among themselves.
"""
import pathlib
import re
import subprocess
import sys

import kubernetes_validate
import yaml

# Native gRPC probes are stable since 1.27.
KUBERNETES_VERSIONS = ("1.27", kubernetes_validate.latest_version())

# Source: https://github.com/kubeflow/mpi-operator, manifests/base/kubeflow.org_mpijobs.yaml (the
# schema) and pkg/apis/kubeflow/validation/validation.go (what the operator refuses beyond it).
MPI_JOB_SPEC = {"launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
                "mpiImplementation": ("OpenMPI",), "mpiReplicaSpecs": dict,
                "runLauncherAsWorker": bool, "runPolicy": dict, "slotsPerWorker": int,
                "sshAuthMountPath": str}
RUN_POLICY = {"activeDeadlineSeconds": int, "backoffLimit": int,
              "cleanPodPolicy": ("None", "Running", "All"), "managedBy": str,
              "schedulingPolicy": dict, "suspend": bool, "ttlSecondsAfterFinished": int}
REPLICA_SPEC = {"replicas": int, "restartPolicy": ("Never", "OnFailure"), "template": dict}

problems = []


def expect(condition, where, message):
    if not condition:
        problems.append(f"{where}: {message}")


def check_fields(where, value, fields, required):
    for name, allowed in fields.items():
        if name not in value:
            expect(name not in required, where, f"{name} is missing")
        elif isinstance(allowed, tuple):
            expect(value[name] in allowed, where, f"{name}: {value[name]!r} is not one of {allowed}")
        else:
            expect(isinstance(value[name], allowed), where, f"{name}: {value[name]!r} is no {allowed.__name__}")
    for name in value:
        expect(name in fields, where, f"unknown field {name}")


def check_core(where, document):
    for version in KUBERNETES_VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(item) for item in error.path)
            problems.append(f"{where}: Kubernetes {version}: {path}: {error.message}")


def check_mpi_job(where, job):
    expect(job["apiVersion"] == "kubeflow.org/v2beta1", where, f"apiVersion {job['apiVersion']}")
    spec = job["spec"]
    check_fields(where, spec, MPI_JOB_SPEC, ("mpiReplicaSpecs", "slotsPerWorker", "sshAuthMountPath"))
    check_fields(f"{where} runPolicy", spec["runPolicy"], RUN_POLICY, ("cleanPodPolicy",))
    expect(set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}, where, "needs Launcher and Worker")
    for role, replica in spec["mpiReplicaSpecs"].items():
        check_fields(f"{where} {role}", replica, REPLICA_SPEC, tuple(REPLICA_SPEC))
        expect("restartPolicy" not in replica["template"]["spec"], where,
               f"the restartPolicy of {role}'s pods is the operator's to set")
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-a-template"},
               "spec": replica["template"]["spec"]}
        check_core(f"{where} {role}", pod)
    expect(spec["mpiReplicaSpecs"]["Launcher"]["replicas"] == 1, where, "there is one launcher")
    name = f"{job['metadata']['name']}-worker-{spec['mpiReplicaSpecs']['Worker']['replicas'] - 1}"
    expect(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name), where, f"pod name {name} is no DNS label")


def pod_specs(document):
    if document["kind"] == "Deployment":
        yield document["spec"]["template"]["spec"]
    if document["kind"] == "MPIJob":
        for replica in document["spec"]["mpiReplicaSpecs"].values():
            yield replica["template"]["spec"]


def secret_modes(where, spec):
    """Secrets reach a program as a copy of mode 0600 in memory, or over standard input."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            in_place = "secret" in volume and f"<{mount['mountPath']}/" not in " ".join(container["command"])
            expect(not in_place, where, f"{container['name']} reads Secret {mount['name']} in place")
            if mount["mountPath"] == "/run/lockstep":
                expect(volume["emptyDir"].get("medium") == "Memory", where, "secrets are copied to a disk")
    for container in spec.get("initContainers", []):
        expect(container["command"][:3] == ["install", "-m", "0600"], where, f"unexpected {container['command']}")


def command_of(container, config):
    words = container.get("command", []) + container.get("args", [])
    return [re.sub(r"\$\((\w+)\)", lambda match: config[match[1]], word) for word in words]


def check_usage(where, lockstep, command):
    """The program understands these flags: it fails for want of the model, not of usage."""
    words = command[command.index("controller" if "controller" in command else "worker"):]
    finished = subprocess.run([lockstep, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    expect(finished.returncode == 1 and "--help" not in finished.stderr, where,
           f"{' '.join(words)}: exit code {finished.returncode}: {finished.stderr.strip()}")


def flag(command, name):
    return next((word.split("=", 1)[1] for word in command if word.startswith(f"--{name}=")), None)


def check_layout(where, job, command, config):
    spec = job["spec"]
    ranks = int(config["LOCKSTEP_TP"]) * int(config["LOCKSTEP_PP"])
    slots = spec["slotsPerWorker"]
    expect(ranks == spec["mpiReplicaSpecs"]["Worker"]["replicas"] * slots, where,
           f"TP x PP = {ranks} is not replicas x slots")
    expect(config["LOCKSTEP_RANKS"] == str(ranks), where, f"LOCKSTEP_RANKS is not {ranks}")
    expect(slots % int(config["LOCKSTEP_TP"]) == 0, where, "a tensor parallel group crosses pods")
    start = command.index("-n")
    expect(command[:2] == ["sh", "-c"] and "exec mpirun" in command[2], where, f"unexpected {command[:3]}")
    expect(command[start + 1] == str(ranks), where, f"unexpected {command[start:start + 2]}")


def check_gpus(where, job, command):
    """Who pays for GPUs computes on them, and their memory is counted where they are."""
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    gpus = worker["resources"]["limits"].get("nvidia.com/gpu", 0)
    if gpus == 0:
        return
    expect(gpus == job["spec"]["slotsPerWorker"], where, f"{gpus} GPUs in a pod of {job['spec']['slotsPerWorker']} ranks")
    expect(flag(command, "device") == "cuda", where, "ranks of pods with nvidia.com/gpu lack --device=cuda")
    for word in command:
        expect(not re.match(r"--(num-kv-blocks|kv-cache-gib)\b", word), where,
               f"{word} pins the KV cache, and leaves what else the GPUs hold idle")


def check_agreement(where, by_name, config, lockstep):
    deployment = by_name["Deployment", "lockstep-controller"]
    pod = deployment["spec"]["template"]
    controller = pod["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in controller["ports"]}
    command = command_of(controller, config)
    expect(flag(command, "listen") == f"0.0.0.0:{ports['grpc']}", where, "--listen is another port")
    expect(flag(command, "worker-listen") == f"0.0.0.0:{ports['ranks']}", where, "--worker-listen is another port")
    expect(controller["readinessProbe"]["grpc"]["port"] == ports["grpc"], where, "the probe asks another port")
    expect(pod["spec"]["terminationGracePeriodSeconds"] > float(flag(command, "drain-seconds")), where,
           "pods are killed before requests are drained")
    expect(flag(command, "http-listen") == f"0.0.0.0:{ports['http']}", where, "--http-listen is another port")
    for name, targets in (("lockstep", ["grpc", "http"]), ("lockstep-ranks", ["ranks"])):
        service = by_name["Service", name]["spec"]
        expect(service["selector"].items() <= pod["metadata"]["labels"].items(), where, f"{name} selects other pods")
        expect([port["targetPort"] for port in service["ports"]] == targets, where, f"{name} leads elsewhere")
    ranks = by_name["Service", "lockstep-ranks"]["spec"]
    expect(ranks["publishNotReadyAddresses"], where, "ranks cannot reach a controller that waits for them")
    expect(by_name["Service", "lockstep"]["spec"]["publishNotReadyAddresses"], where, "clients cannot wait for ranks")
    check_usage(where, lockstep, command)

    job = by_name["MPIJob", "lockstep-workers"]
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    command = command_of(launcher, config)
    check_layout(where, job, command, config)
    check_gpus(where, job, command)
    expect(flag(command, "controller") == f"lockstep-ranks:{ranks['ports'][0]['port']}", where,
           "ranks dial something other than their Service")
    labels = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    peer = by_name["NetworkPolicy", "lockstep-controller"]["spec"]["ingress"][1]["from"][0]["podSelector"]
    expect(peer["matchLabels"].items() <= labels.items(), where, "the NetworkPolicy shuts out the ranks")
    check_usage(where, lockstep, command)


def main():
    lockstep, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    files = {path.name: [document for document in yaml.safe_load_all(path.read_text()) if document]
             for path in sorted(directory.glob("*.yaml"))}
    num_objects = 0
    for name, documents in files.items():
        for document in documents:
            where = f"{name} {document['kind']} {document['metadata']['name']}"
            num_objects += 1
            if document["kind"] == "MPIJob":
                check_mpi_job(where, document)
            else:
                check_core(where, document)
            for spec in pod_specs(document):
                secret_modes(where, spec)
                expect(spec["securityContext"]["runAsNonRoot"], where, "runs as root")
    for variant in ("workers-cpu.yaml", "workers-gpu.yaml"):
        documents = files["controller.yaml"] + files[variant]
        by_name = {(document["kind"], document["metadata"]["name"]): document for document in documents}
        check_agreement(f"controller.yaml with {variant}", by_name, by_name["ConfigMap", "lockstep"]["data"], lockstep)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{num_objects} objects in {len(files)} files, Kubernetes {' and '.join(KUBERNETES_VERSIONS)}: "
          f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
