package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
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
	// rememberedFor is how long a token that was accepted is told from one that nobody has seen: it is asked about again before
	// all strangers' tokens.
	rememberedFor = 10 * time.Minute
	// maxTokens bounds the memory for each of both.
	maxTokens = 4096
	// maxTokenBytes is far above what the API server makes.
	maxTokenBytes = 8 << 10
	// maxReviews is how many tokens are asked about at once, so that a flood of bad ones is not passed on to the API server. It
	// counts for new tokens and for those that were accepted before, each by itself.
	maxReviews = 16
	// maxWaiting is how many more new tokens may wait for that, and maxWait for how long. The next one is answered with 429.
	maxWaiting = 112
	maxWait    = 2 * time.Second
)

// sender is the pod that a token belongs to.
type sender struct {
	Namespace, PodName string
	PodUID             types.UID
}

// authenticator finds out whose a token is.
type authenticator struct {
	client  client.Client
	clock   clock.Clock
	metrics *metrics

	// By SHA-256 of the token: tokens themselves are not kept. They are two, so that junk pushes no good token out.
	accepted *cache.LRUExpireCache // of acceptance
	refused  *cache.LRUExpireCache // of error

	waiting  *semaphore.Weighted // new tokens that are asked about, or wait for that
	reviews  *semaphore.Weighted // those of them that are asked about
	renewals *semaphore.Weighted // tokens that are asked about again
}

type tokenKey = [sha256.Size]byte

// acceptance is a token that the API server has vouched for.
type acceptance struct {
	sender sender
	until  time.Time // then it is asked about again
}

func newAuthenticator(c client.Client, clk clock.Clock, m *metrics) *authenticator {
	return &authenticator{
		client: c, clock: clk, metrics: m,
		accepted: cache.NewLRUExpireCacheWithClock(maxTokens, clk),
		refused:  cache.NewLRUExpireCacheWithClock(maxTokens, clk),
		waiting:  semaphore.NewWeighted(maxReviews + maxWaiting),
		reviews:  semaphore.NewWeighted(maxReviews),
		renewals: semaphore.NewWeighted(maxReviews),
	}
}

// looksLikeToken spares the API server what no token of its own can be.
func looksLikeToken(token string) bool {
	return len(token) <= maxTokenBytes && strings.Count(token, ".") == 2 && !strings.ContainsAny(token, " \t")
}

// looksLikeWorkers tells whether a token claims to be for this audience and of a pod. Nothing is proved by that.
func looksLikeWorkers(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	var claims struct {
		Audiences  []string `json:"aud"`
		Kubernetes struct {
			Pod *struct{} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return false
	}
	return slices.Contains(claims.Audiences, v1alpha1.TokenAudience) && claims.Kubernetes.Pod != nil
}

// identify finds out whose a token is. Its errors are refusals. It is called before a request takes one of the places for
// requests: what nobody has vouched for yet must not keep others from them.
func (a *authenticator) identify(ctx context.Context, token string) (sender, error) {
	key := sha256.Sum256([]byte(token))
	was, known := a.accepted.Get(key)
	if good, ok := was.(acceptance); ok && a.clock.Now().Before(good.until) {
		a.metrics.tokenCacheHits.Inc()
		return good.sender, nil
	}
	if known {
		if err := a.renewals.Acquire(ctx, 1); err != nil {
			return sender{}, errBusy
		}
		defer a.renewals.Release(1)
		return a.ask(ctx, key, token)
	}
	if bad, ok := a.refused.Get(key); ok {
		if err, ok := bad.(error); ok {
			a.metrics.tokenCacheHits.Inc()
			return sender{}, err
		}
	}
	return a.askAnew(ctx, key, token)
}

// askAnew asks about a token that has never been accepted.
func (a *authenticator) askAnew(ctx context.Context, key tokenKey, token string) (sender, error) {
	if !a.waiting.TryAcquire(1) {
		return sender{}, errBusy
	}
	defer a.waiting.Release(1)
	turn, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	if err := a.reviews.Acquire(turn, 1); err != nil {
		return sender{}, errBusy
	}
	defer a.reviews.Release(1)
	return a.ask(ctx, key, token)
}

// ask asks the API server about a token, and keeps what it says.
func (a *authenticator) ask(ctx context.Context, key tokenKey, token string) (sender, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: token, Audiences: []string{v1alpha1.TokenAudience},
	}}
	if err := a.client.Create(ctx, review); err != nil {
		a.metrics.tokenReviews.WithLabelValues("error").Inc()
		return sender{}, unavailable(err)
	}
	if said := &review.Status; !said.Authenticated && said.Error != "" && looksLikeWorkers(token) {
		// The API server says so of a token that it finds wrong and of one that it could not check, in texts alone. To refuse a
		// worker for good because of a check that failed would lose what it reports; one whose token has really become invalid
		// tries again in vain, or with the next token.
		a.metrics.tokenReviews.WithLabelValues("error").Inc()
		return sender{}, &refusal{answer: refusalOf(unavailable(nil)).answer, cause: errors.New(said.Error), quiet: true}
	}
	s, err := judge(&review.Status)
	if err != nil {
		a.metrics.tokenReviews.WithLabelValues("refused").Inc()
		a.accepted.Remove(key)
		a.refused.Add(key, err, refusedFor)
		return sender{}, err
	}
	a.metrics.tokenReviews.WithLabelValues("accepted").Inc()
	a.accepted.Add(key, acceptance{sender: s, until: a.clock.Now().Add(acceptedFor)}, rememberedFor)
	return s, nil
}

// judge reads what the API server says of a token.
func judge(status *authenticationv1.TokenReviewStatus) (sender, error) {
	// An API server that knows nothing of audiences answers without any; its word is not enough.
	if !status.Authenticated || !slices.Contains(status.Audiences, v1alpha1.TokenAudience) {
		return sender{}, errUnauthenticated
	}
	account, ok := strings.CutPrefix(status.User.Username, serviceAccountPrefix)
	if !ok {
		return sender{}, errForbidden
	}
	namespace, _, ok := strings.Cut(account, ":")
	extra := status.User.Extra
	s := sender{Namespace: namespace, PodName: one(extra, extraPodName), PodUID: types.UID(one(extra, extraPodUID))}
	if !ok || namespace == "" || s.PodName == "" || s.PodUID == "" {
		return sender{}, errForbidden
	}
	return s, nil
}

func one(extra map[string]authenticationv1.ExtraValue, key string) string {
	if values := extra[key]; len(values) == 1 {
		return values[0]
	}
	return ""
}
