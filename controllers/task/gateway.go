package task

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/internal/gateway"
)

const (
	// gatewayPort is that of the gateway's Service, as config/gateway has it.
	gatewayPort = 8443
	// controllerContainer is the operator's own: others may have been injected beside it.
	controllerContainer = "controller"
)

// gatewayKnown is how long what is known of the gateway is used: while its CA is replaced the old one is valid, too.
const gatewayKnown = 30 * time.Second

// Gateways finds the gateway in the operator's own namespace.
type Gateways struct {
	// Reader reads past the caches: one Service and one ConfigMap are not worth a watch.
	Reader client.Reader
	// Namespace is the operator's own.
	Namespace string
	// Image has the reporter program. Default: the image of the pod named Pod.
	Image string
	// Pod is the name of the operator's own pod.
	Pod string
	// Clock is the source of the current time.
	Clock clock.PassiveClock

	mu    sync.Mutex
	last  *Gateway
	asked time.Time
}

// Find is what sidecars are told of the gateway. It fails where there is none: a worker is not started before its reports can be
// delivered somewhere.
func (g *Gateways) Find(ctx context.Context) (*Gateway, error) {
	if g == nil || g.Namespace == "" {
		return nil, fmt.Errorf("reporter Sidecar needs the gateway: the controller runs without --gateway-namespace")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != nil && g.Clock.Since(g.asked) < gatewayKnown {
		return g.last, nil
	}
	found, err := g.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("reporter Sidecar needs the gateway: %w", err)
	}
	g.last, g.asked = found, g.Clock.Now()
	return found, nil
}

func (g *Gateways) find(ctx context.Context) (*Gateway, error) {
	var service corev1.Service
	if err := g.Reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: gateway.ServiceName}, &service); err != nil {
		return nil, err
	}
	var ca corev1.ConfigMap
	if err := g.Reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: gateway.ConfigMapName}, &ca); err != nil {
		return nil, err
	}
	if ca.Data[gateway.ConfigMapKey] == "" {
		return nil, fmt.Errorf("ConfigMap %s has no %s", gateway.ConfigMapName, gateway.ConfigMapKey)
	}
	image, err := g.image(ctx)
	if err != nil {
		return nil, err
	}
	found := &Gateway{
		Image: image, CA: ca.Data[gateway.ConfigMapKey],
		URL: "https://" + net.JoinHostPort(fmt.Sprintf("%s.%s.svc", gateway.ServiceName, g.Namespace), strconv.Itoa(gatewayPort)),
	}
	if ip := service.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		found.Address = net.JoinHostPort(ip, strconv.Itoa(gatewayPort))
	}
	return found, nil
}

// image is the operator's own: the reporter that belongs to this version is in it.
func (g *Gateways) image(ctx context.Context) (string, error) {
	if g.Image != "" {
		return g.Image, nil
	}
	var pod corev1.Pod
	if err := g.Reader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: g.Pod}, &pod); err != nil {
		return "", err
	}
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == controllerContainer })
	if i < 0 {
		return "", fmt.Errorf("pod %s has no container %s, whose image the sidecars get: set --reporter-image", g.Pod, controllerContainer)
	}
	g.Image = pod.Spec.Containers[i].Image // the pod's own does not change
	return g.Image, nil
}
