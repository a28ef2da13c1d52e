package gateway

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// What the API server says of a token that is bound to a pod.
const (
	serviceAccountPrefix = "system:serviceaccount:"
	extraPodName         = "authentication.kubernetes.io/pod-name"
	extraPodUID          = "authentication.kubernetes.io/pod-uid"
)

const (
	// acceptedFor is how long a token that was accepted is not asked about again. A pod that is gone may report so much longer;
	// whether its attempt goes on is asked with every report.
	acceptedFor = 30 * time.Second
	// refusedFor is the same for one that was refused. It is short, because a refusal may come of an API server that is behind.
	refusedFor = 5 * time.Second
	// maxTokens bounds the memory for both.
	maxTokens = 4096
	// maxTokenBytes is far above what the API server makes.
	maxTokenBytes = 8 << 10
	// maxReviews is how many tokens are asked about at once, so that a flood of bad ones is not passed on to the API server.
	maxReviews = 16
)

// sender is the pod that a token belongs to.
type sender struct {
	Namespace, PodName string
	PodUID             types.UID
}

// authenticator finds out whose a token is.
type authenticator struct {
	client  client.Client
	known   *cache.LRUExpireCache // of verdict, by SHA-256 of the token: tokens themselves are not kept
	reviews *semaphore.Weighted
	metrics *metrics
}

type verdict struct {
	sender sender
	err    error
}

func newAuthenticator(c client.Client, clk clock.Clock, m *metrics) *authenticator {
	return &authenticator{
		client: c, metrics: m,
		known: cache.NewLRUExpireCacheWithClock(maxTokens, clk), reviews: semaphore.NewWeighted(maxReviews),
	}
}

// looksLikeToken spares the API server what no token of its own can be.
func looksLikeToken(token string) bool {
	return len(token) <= maxTokenBytes && strings.Count(token, ".") == 2 && !strings.ContainsAny(token, " \t")
}

// identify finds out whose a token is. Its errors are refusals.
func (a *authenticator) identify(ctx context.Context, token string) (sender, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := a.known.Get(key); ok {
		if v, ok := known.(verdict); ok {
			a.metrics.tokenCacheHits.Inc()
			return v.sender, v.err
		}
	}
	if err := a.reviews.Acquire(ctx, 1); err != nil {
		return sender{}, errBusy
	}
	defer a.reviews.Release(1)
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: token, Audiences: []string{v1alpha1.TokenAudience},
	}}
	if err := a.client.Create(ctx, review); err != nil {
		a.metrics.tokenReviews.WithLabelValues("error").Inc()
		return sender{}, unavailable(err)
	}
	v := judge(&review.Status)
	kept, result := acceptedFor, "accepted"
	if v.err != nil {
		kept, result = refusedFor, "refused"
	}
	a.metrics.tokenReviews.WithLabelValues(result).Inc()
	a.known.Add(key, v, kept)
	return v.sender, v.err
}

// judge reads what the API server says of a token.
func judge(status *authenticationv1.TokenReviewStatus) verdict {
	// An API server that knows nothing of audiences answers without any; its word is not enough.
	if !status.Authenticated || !slices.Contains(status.Audiences, v1alpha1.TokenAudience) {
		return verdict{err: errUnauthenticated}
	}
	account, ok := strings.CutPrefix(status.User.Username, serviceAccountPrefix)
	if !ok {
		return verdict{err: errForbidden}
	}
	namespace, _, ok := strings.Cut(account, ":")
	extra := status.User.Extra
	s := sender{Namespace: namespace, PodName: one(extra, extraPodName), PodUID: types.UID(one(extra, extraPodUID))}
	if !ok || namespace == "" || s.PodName == "" || s.PodUID == "" {
		return verdict{err: errForbidden}
	}
	return verdict{sender: s}
}

func one(extra map[string]authenticationv1.ExtraValue, key string) string {
	if values := extra[key]; len(values) == 1 {
		return values[0]
	}
	return ""
}
