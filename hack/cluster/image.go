package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/spf13/cobra"
)

// imageUser is the customary unprivileged user of images without a shell.
const imageUser = 65532

// imageTime stands in every file and in the image's own record, so that the same sources
// give the same image.
var imageTime = time.Unix(0, 0).UTC()

// imageFile is one file of the image's single layer.
type imageFile struct {
	path    string // absolute, in the image
	mode    int64
	content []byte
}

type imageOptions struct {
	packages []string
	dir      string
	tag      string
	files    []string
	out      string
	root     bool
}

func newImageCommand() *cobra.Command {
	var o imageOptions
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build Go programs into an image file, without Docker",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return buildImage(cmd.Context(), newProgress(), o)
		},
	}
	cmd.Flags().StringArrayVar(&o.packages, "package", nil, "main package; the first of several is the entrypoint (repeatable)")
	cmd.Flags().StringVar(&o.dir, "dir", ".", "folder of the module")
	cmd.Flags().StringVar(&o.tag, "tag", "", "name of the image, such as taskwarden.dev/x:dev")
	cmd.Flags().StringArrayVar(&o.files, "file", nil, "additional file, HOST:CONTAINER (repeatable)")
	cmd.Flags().StringVarP(&o.out, "output", "o", "", "file to write")
	cmd.Flags().BoolVar(&o.root, "root", false, fmt.Sprintf("run as root instead of user %d", imageUser))
	for _, flag := range []string{"package", "tag", "output"} {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // a flag that is not defined above
		}
	}
	return cmd
}

func buildImage(ctx context.Context, p *progress, o imageOptions) error {
	tmp, err := os.MkdirTemp("", "taskwarden-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var files []imageFile
	var entrypoint string
	for _, pkg := range o.packages {
		file, err := buildImageProgram(ctx, p, tmp, o.dir, pkg)
		if err != nil {
			return err
		}
		if entrypoint == "" {
			entrypoint = file.path
		}
		files = append(files, file)
	}
	if certs, err := os.ReadFile(caCertificates); err == nil {
		files = append(files, imageFile{caCertificates, 0o644, certs})
	}
	for _, spec := range o.files {
		file, err := readImageFile(spec)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	user := fmt.Sprintf("%d:%d", imageUser, imageUser)
	if o.root {
		user = "0:0"
	}
	img, err := makeImage(files, v1.Config{
		Entrypoint: []string{entrypoint}, User: user, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "SSL_CERT_FILE=" + caCertificates},
	})
	if err != nil {
		return err
	}
	if err := writeImage(img, o.tag, o.out); err != nil {
		return err
	}
	p.say("wrote %s as %s", o.tag, o.out)
	return nil
}

const caCertificates = "/etc/ssl/certs/ca-certificates.crt"

func buildImageProgram(ctx context.Context, p *progress, tmp, dir, pkg string) (imageFile, error) {
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Name}} {{.Target}}", pkg)
	list.Dir = dir
	listed, err := list.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return imageFile{}, fmt.Errorf("package %s in %s: %w", pkg, dir, err)
	}
	kind, target, _ := strings.Cut(strings.TrimSpace(string(listed)), " ")
	if kind != "main" {
		return imageFile{}, fmt.Errorf("package %s in %s is not a program", pkg, dir)
	}
	binary := filepath.Base(target)
	out := filepath.Join(tmp, binary)
	stop := p.heartbeat(func() string { return "still building " + pkg })
	defer stop()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if output, err := cmd.CombinedOutput(); err != nil {
		return imageFile{}, fmt.Errorf("building %s: %w\n%s", pkg, err, output)
	}
	content, err := os.ReadFile(out)
	return imageFile{"/" + binary, 0o755, content}, err
}

func readImageFile(spec string) (imageFile, error) {
	host, container, ok := strings.Cut(spec, ":")
	if !ok || !path.IsAbs(container) {
		return imageFile{}, fmt.Errorf("--file %s: must be HOST:CONTAINER with an absolute path in the container", spec)
	}
	info, err := os.Stat(host)
	if err != nil {
		return imageFile{}, err
	}
	content, err := os.ReadFile(host)
	return imageFile{path.Clean(container), int64(info.Mode().Perm()), content}, err
}

// makeImage puts the files into one layer.
func makeImage(files []imageFile, config v1.Config) (v1.Image, error) {
	layerTar, err := tarLayer(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layerTar)), nil })
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	record, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	record = record.DeepCopy()
	record.OS, record.Architecture = "linux", runtime.GOARCH
	record.Created = v1.Time{Time: imageTime}
	record.Config = config
	return mutate.ConfigFile(img, record)
}

// tarLayer writes files in the order of their paths, each after the folders it is in. /tmp
// is there because Go programs expect one and the user may not create it.
func tarLayer(files []imageFile) ([]byte, error) {
	sort.SliceStable(files, func(i, j int) bool { return files[i].path < files[j].path })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	seen := map[string]bool{"/": true}
	var folder func(dir string, mode int64) error
	folder = func(dir string, mode int64) error {
		if seen[dir] {
			return nil
		}
		if err := folder(path.Dir(dir), 0o755); err != nil {
			return err
		}
		seen[dir] = true
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode, ModTime: imageTime})
	}
	if err := folder("/tmp", 0o1777); err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := folder(path.Dir(file.path), 0o755); err != nil {
			return nil, err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file.path, "/"), Mode: file.mode, Size: int64(len(file.content)), ModTime: imageTime,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(file.content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// writeImage writes the file under another name first, so that a reader never sees half.
func writeImage(img v1.Image, tag, out string) error {
	ref, err := name.NewTag(tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("--tag %s: %w", tag, err)
	}
	tmp := out + ".tmp"
	if err := tarball.WriteToFile(tmp, ref, img); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

func newLoadImageCommand() *cobra.Command {
	var clusterName string
	cmd := &cobra.Command{
		Use:   "load-image FILE...",
		Short: "Load image files into a cluster with a real node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			c, err := loadCluster(clusterName)
			if err != nil {
				return err
			}
			if c.Mode != modeKubelet {
				return fmt.Errorf("cluster %s runs with --node %s and has no containers", c.Name, c.Mode)
			}
			p := newProgress()
			for _, file := range files {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				err = c.importImage(cmd.Context(), f)
				f.Close()
				if err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
				p.say("loaded %s", file)
			}
			return nil
		},
	}
	nameFlag(cmd, &clusterName)
	return cmd
}

// importImage hands the image over as a stream, since the file may lie in a folder that
// the node covers with its own.
func (c *cluster) importImage(ctx context.Context, r io.Reader) error {
	cmd := c.nodeCommand(ctx, "ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = r
	return c.runInNode(cmd)
}

// pauseImage holds a pod's namespaces. It is made from our own pause program, because
// there is no registry to pull one from.
const pauseImage = "taskwarden.dev/pause:local"

// importPause waits until containerd answers and gives it the sandbox image.
func (c *cluster) importPause(ctx context.Context, p *progress) error {
	content, err := os.ReadFile(c.bin().path("pause"))
	if err != nil {
		return err
	}
	img, err := makeImage([]imageFile{{"/pause", 0o755, content}}, v1.Config{
		Entrypoint: []string{"/pause"}, User: fmt.Sprintf("%d:%d", imageUser, imageUser),
	})
	if err != nil {
		return err
	}
	file := c.path("pause.tar")
	if err := writeImage(img, pauseImage, file); err != nil {
		return err
	}
	return c.wait(ctx, p, "containerd", func() error {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		defer f.Close()
		return c.importImage(ctx, f)
	})
}
