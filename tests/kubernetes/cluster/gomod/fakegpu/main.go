// fakegpu is a kubelet device plugin that offers pretended GPUs as nvidia.com/gpu.
//
// As NVIDIA's does, it hands the granted ids to the container as NVIDIA_VISIBLE_DEVICES. It reads -unhealthy-file twice a second: the
// ids listed there are reported broken. When the kubelet starts anew it removes our socket, and we register again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const tick = 500 * time.Millisecond

type plugin struct {
	api.UnimplementedDevicePluginServer
	ids           []string
	unhealthyFile string
}

func (p *plugin) devices() []*api.Device {
	text, _ := os.ReadFile(p.unhealthyFile)
	broken := strings.Fields(string(text))
	devices := make([]*api.Device, 0, len(p.ids))
	for _, id := range p.ids {
		health := api.Healthy
		if slices.Contains(broken, id) {
			health = api.Unhealthy
		}
		devices = append(devices, &api.Device{ID: id, Health: health})
	}
	return devices
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	sent := ""
	for {
		devices := p.devices()
		if now := fmt.Sprint(devices); now != sent {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(tick):
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		granted := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{Envs: granted})
	}
	return response, nil
}

func register(folder, socket string) error {
	connection, err := grpc.NewClient("unix://"+filepath.Join(folder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(socket), ResourceName: "nvidia.com/gpu",
	})
	return err
}

// serve returns when the socket is gone, or at the first error.
func (p *plugin) serve(folder string) error {
	socket := filepath.Join(folder, "fakegpu.sock")
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go server.Serve(listener)
	defer server.Stop()
	if err := register(folder, socket); err != nil {
		return err
	}
	log.Printf("registered %d GPUs", len(p.ids))
	for {
		if _, err := os.Stat(socket); err != nil {
			return err
		}
		time.Sleep(tick)
	}
}

func main() {
	folder := flag.String("dir", api.DevicePluginPath, "the kubelet's folder of device plugins")
	count := flag.Int("count", 4, "how many GPUs")
	unhealthy := flag.String("unhealthy-file", "", "file with the ids of broken GPUs")
	flag.Parse()
	p := &plugin{unhealthyFile: *unhealthy}
	for i := range *count {
		p.ids = append(p.ids, fmt.Sprintf("GPU-fake-%d", i))
	}
	for {
		log.Print(p.serve(*folder))
		time.Sleep(tick)
	}
}
