// Package kubernetes checks the Kubernetes example with Kubernetes' own types, which read the
// manifests strictly. It is a module of its own, so that users do not inherit those types.
package kubernetes

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const folder = "../../compose/kubernetes"

// must returns value. It panics on an error that cannot happen once the test has come this far.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// manifests reads the example. It returns the values of each document by kind and path, as in
// "Job metadata name". A field that Kubernetes does not define is an error. KEDA's objects are
// not checked: its types would bring a controller's libraries. They are in a folder of their own,
// since kubectl apply fails on them where KEDA is not installed.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, file := range []string{folder + "/base/verifier.yaml", folder + "/keda/scaling.yaml"} {
		read(t, all, file, must(os.ReadFile(file)))
	}
	return all
}

// read adds the documents of a file to all.
func read(t *testing.T, all map[string]string, file string, documents []byte) {
	t.Helper()
	known := map[string]any{"batch/v1 Job": new(batch.Job), "apps/v1 Deployment": new(apps.Deployment), "policy/v1 PodDisruptionBudget": new(policy.PodDisruptionBudget),
		"networking.k8s.io/v1 NetworkPolicy": new(network.NetworkPolicy)}
	for document := range bytes.SplitSeq(documents, []byte("\n---\n")) {
		var content map[string]any
		if err := yaml.Unmarshal(document, &content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		version, kind := fmt.Sprint(content["apiVersion"]), fmt.Sprint(content["kind"])
		into, ok := known[version+" "+kind]
		if keda := strings.HasPrefix(version, "keda.sh/"); keda == ok || keda != strings.Contains(file, "/keda/") {
			t.Errorf("%s has a %s %s", file, version, kind)
		} else if ok {
			if err := yaml.UnmarshalStrict(document, into); err != nil {
				t.Errorf("%s: %s: %v", file, kind, err)
			}
		}
		if kind == "NetworkPolicy" { // there is one for each kind of pod
			kind += " " + strings.TrimPrefix(fmt.Sprint(content["metadata"].(map[string]any)["name"]), "twoqueue-")
		}
		flatten(all, kind, content)
	}
}

func flatten(into map[string]string, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		if name, ok := value["name"].(string); ok && value["value"] != nil { // a variable
			into[path[:strings.LastIndex(path, " ")]+" "+name] = fmt.Sprint(value["value"])
		}
		for key, v := range value {
			flatten(into, path+" "+key, v)
		}
	case []any:
		for i, v := range value {
			flatten(into, fmt.Sprint(path, " ", i), v)
		}
	default:
		into[path] = fmt.Sprint(value)
	}
}

const (
	pod       = " spec template spec"
	container = pod + " containers 0"
	label     = " app.kubernetes.io/name"
)

func TestThePartsOfTheKubernetesExampleFitTogether(t *testing.T) {
	m := manifests(t)
	for _, same := range [][2]string{
		{"Deployment spec selector matchLabels" + label, "Deployment spec template metadata labels" + label},
		{"PodDisruptionBudget spec selector matchLabels" + label, "Deployment spec template metadata labels" + label},
		{"Deployment" + pod + " topologySpreadConstraints 0 labelSelector matchLabels" + label, "Deployment spec template metadata labels" + label},
		{"Job" + container + " image", "Deployment" + container + " image"},
		{"ScaledObject spec scaleTargetRef name", "Deployment metadata name"},
		{"ScaledObject spec triggers 0 authenticationRef name", "TriggerAuthentication metadata name"},
		{"NetworkPolicy verifier spec podSelector matchLabels" + label, "Deployment spec template metadata labels" + label},
		{"NetworkPolicy migrate spec podSelector matchLabels" + label, "Job spec template metadata labels" + label},
		{"NetworkPolicy verifier spec ingress 0 ports 0 port", "Deployment" + container + " ports 0 name"},
		{"Deployment" + pod + " volumes 0 name", "Deployment" + container + " volumeMounts 0 name"},
	} {
		if a, b := m[same[0]], m[same[1]]; a == "" || a != b {
			t.Errorf("%s is %q, and %s is %q", same[0], a, same[1], b)
		}
	}
	if m["Job spec template metadata labels"+label] == m["Deployment spec selector matchLabels"+label] {
		t.Error("the deployment selects the job")
	}
	// The migration, the verifier and the autoscaler have a login each.
	secrets := map[string]bool{m["Job"+pod+" volumes 0 secret secretName"]: true, m["Deployment"+pod+" volumes 0 secret secretName"]: true,
		m["TriggerAuthentication spec secretTargetRef 0 name"]: true}
	if len(secrets) != 3 || secrets[""] {
		t.Errorf("the three programs share a secret: %v", secrets)
	}
	// A Job's image cannot be changed, so the Job of a new release has another name.
	_, tag, _ := strings.Cut(m["Job"+container+" image"], ":")
	if tag == "" || tag == "latest" || !strings.HasSuffix(m["Job metadata name"], "-"+strings.ReplaceAll(tag, ".", "-")) {
		t.Errorf("the job of %s is called %s", m["Job"+container+" image"], m["Job metadata name"])
	}
	grace := must(time.ParseDuration(m["Deployment"+pod+" terminationGracePeriodSeconds"] + "s"))
	if drain := must(time.ParseDuration(m["Deployment"+container+" env BRIDGE_DRAIN"])); grace < drain+5*time.Second {
		t.Errorf("it drains for %v and is given %v", drain, grace)
	}
	for path, want := range map[string]string{
		"Deployment spec replicas":                                "", // otherwise deployment and autoscaler would both set the number
		"PodDisruptionBudget spec maxUnavailable":                 "1",
		"PodDisruptionBudget spec minAvailable":                   "", // with one verifier a drain would wait for a second one for ever
		"ScaledObject spec minReplicaCount":                       "[2-9]",
		"ScaledObject spec maxReplicaCount":                       "[3-9]",
		"TriggerAuthentication spec secretTargetRef 0 parameter":  "host",
		"TriggerAuthentication spec secretTargetRef 0 key":        "management_url",
		"ScaledObject spec triggers 0 metadata protocol":          "http", // over AMQP the login would need a right to the queue
		"NetworkPolicy verifier spec policyTypes 0":               "Ingress",
		"NetworkPolicy verifier spec policyTypes 1":               "Egress",
		"NetworkPolicy migrate spec policyTypes 0":                "Ingress",
		"NetworkPolicy migrate spec policyTypes 1":                "Egress",
		"NetworkPolicy migrate spec ingress 0 ports 0 port":       "",
		"ScaledObject spec triggers 0 metadata queueName":         "twoqueue", // the default
		"Deployment" + container + " env BRIDGE_QUEUE":            "",
		"Deployment" + container + " env BRIDGE_HTTP_ADDR":        ":8081",
		"Deployment" + container + " ports 0 containerPort":       "8081",
		"Deployment" + container + " ports 0 name":                "http",
		"Deployment" + container + " startupProbe httpGet path":   "/livez",
		"Deployment" + container + " startupProbe httpGet port":   "http",
		"Deployment" + container + " livenessProbe httpGet path":  "/livez",
		"Deployment" + container + " livenessProbe httpGet port":  "http",
		"Deployment" + container + " readinessProbe httpGet path": "/readyz",
		"Deployment" + container + " readinessProbe httpGet port": "http",
		"Job spec ttlSecondsAfterFinished":                        `\d+`,
	} {
		if !regexp.MustCompile("^(" + want + ")$").MatchString(m[path]) {
			t.Errorf("%s is %q, must be %q", path, m[path], want)
		}
	}
}

// Kustomize builds the example from the files alone. The example changes the named values and no
// others.
func TestTheKustomizationOfTheExampleChangesTheBase(t *testing.T) {
	build := func(name string) map[string]string {
		t.Helper()
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder+"/"+name)
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string]string)
		read(t, all, name, must(built.AsYaml()))
		return all
	}
	base, example := build("base"), build("example")
	want := maps.Clone(base)
	want["Job metadata name"] = "twoqueue-migrate-1-1-0"
	want["Deployment"+container+" env BRIDGE_ALLOW"] = ":emails,orders:*"
	for _, kind := range []string{"Job", "Deployment"} {
		want[kind+container+" image"] = "registry.shop.example/twoqueue/verifier:1.1.0"
	}
	for _, kind := range []string{"Job", "Deployment", "PodDisruptionBudget", "NetworkPolicy verifier", "NetworkPolicy migrate"} {
		want[kind+" metadata namespace"] = "shop"
	}
	element := regexp.MustCompile(` env \d+ `) // also found by its name, and a patch may reorder it
	paths := maps.Clone(want)
	maps.Copy(paths, example)
	for path := range paths {
		if !element.MatchString(path) && want[path] != example[path] {
			t.Errorf("%s is %q, must be %q", path, example[path], want[path])
		}
	}
	if read := manifests(t); base["Deployment"+container+" image"] != read["Deployment"+container+" image"] {
		t.Error("the base is another one than its file")
	}
}

func TestPodsAreConfinedAndFindTheirSecrets(t *testing.T) {
	m := manifests(t)
	for _, kind := range []string{"Job", "Deployment"} {
		for path, want := range map[string]string{
			pod + " securityContext runAsNonRoot":                   "true",
			pod + " securityContext runAsUser":                      `[1-9]\d*`,
			pod + " securityContext seccompProfile type":            "RuntimeDefault",
			pod + " enableServiceLinks":                             "false",
			pod + " automountServiceAccountToken":                   "false",
			container + " securityContext allowPrivilegeEscalation": "false",
			container + " securityContext readOnlyRootFilesystem":   "true",
			container + " securityContext capabilities drop 0":      "ALL",
			container + " resources requests cpu":                   ".+",
			container + " resources requests memory":                ".+",
			container + " resources limits memory":                  ".+",
		} {
			if !regexp.MustCompile("^(" + want + ")$").MatchString(m[kind+path]) {
				t.Errorf("%s%s is %q, must be %q", kind, path, m[kind+path], want)
			}
		}
		for path, value := range m {
			name := strings.TrimPrefix(path, kind+container+" env ")
			if name != path && strings.HasSuffix(name, "_FILE") && filepath.Dir(value) != m[kind+container+" volumeMounts 0 mountPath"] {
				t.Errorf("%s: %s is not in the secret", kind, value)
			}
		}
	}
}
