# The image for people who have Docker. `make images` builds the same image without it.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src

# The modules are a layer of their own: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download

COPY api/ api/
COPY cmd/ cmd/
COPY controllers/ controllers/
COPY internal/ internal/
RUN CGO_ENABLED=0 GOOS=${TARGETOS:-linux} GOARCH=${TARGETARCH} \
    go build -trimpath -ldflags "-s -w" -o / ./cmd/taskwarden ./cmd/taskwarden-reporter

FROM gcr.io/distroless/static:nonroot
COPY --from=build /taskwarden /taskwarden-reporter /
USER 65532:65532
ENTRYPOINT ["/taskwarden"]
