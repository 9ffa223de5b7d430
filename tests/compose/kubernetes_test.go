package compose

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The part of KEDA's resources that the example uses, by KEDA's documentation. KEDA's
// own types would bring a controller's libraries.
type (
	triggerAuthentication struct {
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
		Spec            struct {
			SecretTargetRef []struct {
				Parameter string `json:"parameter"`
				Name      string `json:"name"`
				Key       string `json:"key"`
			} `json:"secretTargetRef"`
		} `json:"spec"`
	}
	scaledObject struct {
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
		Spec            struct {
			ScaleTargetRef struct {
				Name string `json:"name"`
			} `json:"scaleTargetRef"`
			MinReplicaCount *int32 `json:"minReplicaCount"`
			MaxReplicaCount *int32 `json:"maxReplicaCount"`
			PollingInterval *int32 `json:"pollingInterval"`
			CooldownPeriod  *int32 `json:"cooldownPeriod"`
			Advanced        struct {
				HorizontalPodAutoscalerConfig struct {
					Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
				} `json:"horizontalPodAutoscalerConfig"`
			} `json:"advanced"`
			Triggers []struct {
				Type              string `json:"type"`
				AuthenticationRef struct {
					Name string `json:"name"`
				} `json:"authenticationRef"`
				Metadata map[string]string `json:"metadata"`
			} `json:"triggers"`
		} `json:"spec"`
	}
)

// cluster is what the example makes.
type cluster struct {
	job            *batch.Job
	deployment     *apps.Deployment
	disruption     *policy.PodDisruptionBudget
	authentication *triggerAuthentication
	scaled         *scaledObject
}

// manifests reads the example strictly: a field that Kubernetes does not know is an
// error.
func manifests(t *testing.T) *cluster {
	t.Helper()
	c := new(cluster)
	kinds := map[string]func() any{
		"batch/v1 Job":                           func() any { c.job = new(batch.Job); return c.job },
		"apps/v1 Deployment":                     func() any { c.deployment = new(apps.Deployment); return c.deployment },
		"policy/v1 PodDisruptionBudget":          func() any { c.disruption = new(policy.PodDisruptionBudget); return c.disruption },
		"keda.sh/v1alpha1 TriggerAuthentication": func() any { c.authentication = new(triggerAuthentication); return c.authentication },
		"keda.sh/v1alpha1 ScaledObject":          func() any { c.scaled = new(scaledObject); return c.scaled },
	}
	// What only KEDA's definitions make known is in a folder of its own: kubectl apply
	// would stop there elsewhere.
	files := append(must(filepath.Glob(folder+"/kubernetes/*.yaml")), must(filepath.Glob(folder+"/kubernetes/keda/*.yaml"))...)
	if len(files) < 2 {
		t.Fatalf("manifests %v", files)
	}
	for _, file := range files {
		for document := range bytes.SplitSeq(must(os.ReadFile(file)), []byte("\n---\n")) {
			var kind meta.TypeMeta
			if err := yaml.Unmarshal(document, &kind); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if keda := strings.HasPrefix(kind.APIVersion, "keda.sh/"); keda != strings.Contains(file, "/keda/") {
				t.Errorf("%s has a %s", file, kind.APIVersion)
			}
			make, ok := kinds[kind.APIVersion+" "+kind.Kind]
			if !ok {
				t.Errorf("%s: %s %s is there twice or not known", file, kind.APIVersion, kind.Kind)
				continue
			}
			delete(kinds, kind.APIVersion+" "+kind.Kind)
			if err := yaml.UnmarshalStrict(document, make()); err != nil {
				t.Errorf("%s: %s: %v", file, kind.Kind, err)
			}
		}
	}
	for kind := range kinds {
		t.Fatalf("there is no %s", kind)
	}
	return c
}

func TestThePartsOfTheKubernetesExampleFitTogether(t *testing.T) {
	c := manifests(t)
	labels := c.deployment.Spec.Template.Labels
	for name, selector := range map[string]*meta.LabelSelector{
		"deployment": c.deployment.Spec.Selector, "budget": c.disruption.Spec.Selector,
		"spread": c.deployment.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector,
	} {
		parsed, err := meta.LabelSelectorAsSelector(selector)
		if err != nil || parsed.Empty() || !parsed.Matches(labelSet(labels)) {
			t.Errorf("%s does not select the verifiers: %v", name, err)
		}
		if parsed.Matches(labelSet(c.job.Spec.Template.Labels)) {
			t.Errorf("%s selects the job", name)
		}
	}
	// A drain that waits for a second verifier would wait for ever where there is one.
	if d := c.disruption.Spec; d.MinAvailable != nil || d.MaxUnavailable == nil || d.MaxUnavailable.IntValue() != 1 {
		t.Errorf("budget %+v", d)
	}
	// A Job's image cannot be changed, so a new release's has another name.
	image := c.job.Spec.Template.Spec.Containers[0].Image
	_, tag, _ := strings.Cut(image, ":")
	if !strings.HasSuffix(c.job.Name, "-"+strings.ReplaceAll(tag, ".", "-")) || c.job.Spec.TTLSecondsAfterFinished == nil {
		t.Errorf("the job of %s is called %s", image, c.job.Name)
	}
	if other := c.deployment.Spec.Template.Spec.Containers[0].Image; other != image {
		t.Errorf("the job is of %s, the verifiers are of %s", image, other)
	}
	if name := c.scaled.Spec.ScaleTargetRef.Name; name != c.deployment.Name {
		t.Errorf("%s is scaled", name)
	}
	if c.deployment.Spec.Replicas != nil {
		t.Error("the deployment fights the autoscaler for the number of verifiers")
	}
	if least, most := *c.scaled.Spec.MinReplicaCount, *c.scaled.Spec.MaxReplicaCount; least < 2 || most <= least {
		t.Errorf("%d to %d verifiers", least, most)
	}
	trigger, reference := c.scaled.Spec.Triggers[0], c.authentication.Spec.SecretTargetRef[0]
	if trigger.AuthenticationRef.Name != c.authentication.Name || reference.Parameter != "host" || reference.Key != "amqp_url" {
		t.Errorf("trigger %+v by %+v", trigger, reference)
	}
	pod := c.deployment.Spec.Template.Spec
	if secret := pod.Volumes[0].Secret; reference.Name != secret.SecretName || pod.Volumes[0].Name != pod.Containers[0].VolumeMounts[0].Name {
		t.Errorf("the secret is %s and %s", reference.Name, secret.SecretName)
	}
	queue := "twoqueue" // the default
	for _, env := range pod.Containers[0].Env {
		if env.Name == "BRIDGE_QUEUE" {
			queue = env.Value
		}
	}
	if trigger.Metadata["queueName"] != queue {
		t.Errorf("the autoscaler looks at %s", trigger.Metadata["queueName"])
	}
}

func TestPodsAreConfinedAndTheirVariablesKnown(t *testing.T) {
	c := manifests(t)
	known := variables(t, "verifier")
	for name, pod := range map[string]core.PodSpec{"job": c.job.Spec.Template.Spec, "deployment": c.deployment.Spec.Template.Spec} {
		if s := pod.SecurityContext; s == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: security %+v", name, s)
		}
		if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
			t.Errorf("%s is given the variables of Services", name)
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s has a token of the cluster", name)
		}
		container := pod.Containers[0]
		if s := container.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) == 0 || s.Capabilities.Drop[0] != "ALL" {
			t.Errorf("%s: container security %+v", name, s)
		}
		if r := container.Resources; r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
			t.Errorf("%s: resources %+v", name, r)
		}
		if _, tag, _ := strings.Cut(container.Image, ":"); tag == "" || tag == "latest" {
			t.Errorf("%s: image %s", name, container.Image)
		}
		mount := container.VolumeMounts[0].MountPath
		for _, env := range container.Env {
			if !known[env.Name] && env.Name != "GOMEMLIMIT" { // that one is Go's
				t.Errorf("%s: the verifier has no variable %s", name, env.Name)
			}
			if strings.HasSuffix(env.Name, "_FILE") && filepath.Dir(env.Value) != mount {
				t.Errorf("%s: %s is not in the secret", name, env.Value)
			}
		}
	}
}

func TestProbesAndTimesOfTheDeployment(t *testing.T) {
	pod := manifests(t).deployment.Spec.Template.Spec
	container := pod.Containers[0]
	for path, probes := range map[string][]*core.Probe{"/livez": {container.StartupProbe, container.LivenessProbe}, "/readyz": {container.ReadinessProbe}} {
		for _, probe := range probes {
			if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != container.Ports[0].Name {
				t.Errorf("%s: probe %+v", path, probe)
			}
		}
	}
	for _, env := range container.Env {
		switch env.Name {
		case "BRIDGE_DRAIN":
			if drain := must(time.ParseDuration(env.Value)); time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second < drain+5*time.Second {
				t.Errorf("it drains for %v and is given %d s", drain, *pod.TerminationGracePeriodSeconds)
			}
		case "BRIDGE_HTTP_ADDR":
			if !strings.HasSuffix(env.Value, ":8081") || container.Ports[0].ContainerPort != 8081 {
				t.Errorf("it listens on %s, and port %d is asked", env.Value, container.Ports[0].ContainerPort)
			}
		}
	}
}

type labelSet map[string]string

func (l labelSet) Has(name string) bool              { _, ok := l[name]; return ok }
func (l labelSet) Get(name string) string            { return l[name] }
func (l labelSet) Lookup(name string) (string, bool) { value, ok := l[name]; return value, ok }
