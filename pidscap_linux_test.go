package main

import (
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// files is a recorded layout: name to content. A name that ends in a slash is
// a directory, and the directories above each name come by themselves.
type files map[string]string

func (f files) build(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range f {
		full := filepath.Join(root, name)
		dir := filepath.Dir(full)
		if strings.HasSuffix(name, "/") {
			dir = full
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir == full {
			continue
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// lines joins lines the way /proc prints them.
func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

const (
	rootMount   = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
	procMount   = "24 23 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw"
	unified     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
	cgroupTmpfs = "29 23 0:25 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755"
	v1Pids      = "36 29 0:33 / /sys/fs/cgroup/pids rw,nosuid,nodev,noexec,relatime shared:19 - cgroup cgroup rw,pids"
)

func TestReadPidsCap(t *testing.T) {
	const noFile = "\x00" // no such file in /proc/self
	tests := []struct {
		name              string
		cgroup, mountinfo string
		files             files
		want              pidsCap
	}{
		{
			// Docker binds the container's own directory of each hierarchy.
			name: "docker v1",
			cgroup: lines(
				"11:pids:/docker/c0ffee",
				"10:memory:/docker/c0ffee",
				"1:name=systemd:/docker/c0ffee",
				"0::/system.slice/containerd.service"),
			mountinfo: lines(
				"800 600 0:90 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w",
				"803 800 0:94 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro",
				"804 803 0:95 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755",
				"805 804 0:30 /docker/c0ffee /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime master:16 - cgroup cgroup rw,memory",
				"806 804 0:33 /docker/c0ffee /sys/fs/cgroup/pids ro,nosuid,nodev,noexec,relatime master:19 - cgroup cgroup rw,pids"),
			files: files{
				"/sys/fs/cgroup/pids/pids.max":   "100\n",
				"/sys/fs/cgroup/memory/pids.max": "1\n", // not the pids hierarchy
			},
			want: pidsCap{max: 100, finite: true, file: "/sys/fs/cgroup/pids/pids.max"},
		},
		{
			name:      "docker v1, process in a cgroup of its own below the container's",
			cgroup:    lines("11:cpu,pids:/docker/c0ffee/job:1"),
			mountinfo: lines("806 804 0:33 /docker/c0ffee /cg/pids ro - cgroup cgroup rw,cpu,pids"),
			files: files{
				"/cg/pids/job:1/pids.max": "20\n",
				"/cg/pids/pids.max":       "100\n",
			},
			want: pidsCap{max: 20, finite: true, file: "/cg/pids/job:1/pids.max"},
		},
		{
			name:      "docker v2, private cgroup namespace",
			cgroup:    lines("0::/"),
			mountinfo: lines("900 899 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate"),
			files:     files{"/sys/fs/cgroup/pids.max": "256\n"},
			want:      pidsCap{max: 256, finite: true, file: "/sys/fs/cgroup/pids.max"},
		},
		{
			name:      "docker v2, private cgroup namespace, no cap",
			cgroup:    lines("0::/"),
			mountinfo: lines("900 899 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate"),
			files:     files{"/sys/fs/cgroup/pids.max": "max\n"},
		},
		{
			name:      "docker v2, host cgroup namespace",
			cgroup:    lines("0::/system.slice/docker-c0ffee.scope"),
			mountinfo: lines("900 899 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate"),
			files: files{
				"/sys/fs/cgroup/system.slice/docker-c0ffee.scope/pids.max":   "77\n",
				"/sys/fs/cgroup/system.slice/docker-decade.scope/pids.max":   "5\n", // another container's
				"/sys/fs/cgroup/system.slice/docker-c0ffee.scope/x/pids.max": "6\n", // a child's
				"/sys/fs/cgroup/system.slice/pids.max":                       "max\n",
			},
			want: pidsCap{max: 77, finite: true, file: "/sys/fs/cgroup/system.slice/docker-c0ffee.scope/pids.max"},
		},
		{
			name:      "docker v2, host cgroup namespace, only its own directory bound",
			cgroup:    lines("0::/system.slice/docker-c0ffee.scope"),
			mountinfo: lines("900 899 0:26 /system.slice/docker-c0ffee.scope /sys/fs/cgroup ro - cgroup2 cgroup rw"),
			files:     files{"/sys/fs/cgroup/pids.max": "77\n"},
			want:      pidsCap{max: 77, finite: true, file: "/sys/fs/cgroup/pids.max"},
		},
		{
			name:      "kubernetes v2, cap on the pod",
			cgroup:    lines("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-a.scope"),
			mountinfo: lines(rootMount, procMount, unified),
			files: files{
				"/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-a.scope/pids.max": "max\n",
				"/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/pids.max":                        "1024\n",
				"/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/pids.max":                                                      "max\n",
				"/sys/fs/cgroup/kubepods.slice/pids.max":                                                                               "30000\n",
			},
			want: pidsCap{max: 1024, finite: true, file: "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/pids.max"},
		},
		{
			name:      "kubernetes v1, cap on the pod, mount from the pod's parent",
			cgroup:    lines("4:pids:/kubepods/burstable/pod1/a"),
			mountinfo: lines("700 699 0:33 /kubepods/burstable /cg/pids ro - cgroup cgroup rw,pids"),
			files: files{
				"/cg/pids/pod1/a/pids.max": "max\n",
				"/cg/pids/pod1/pids.max":   "1024\n",
				"/cg/pids/pids.max":        "max\n",
			},
			want: pidsCap{max: 1024, finite: true, file: "/cg/pids/pod1/pids.max"},
		},
		{
			name:      "systemd user session, TasksMax on the user slice",
			cgroup:    lines("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope"),
			mountinfo: lines(rootMount, procMount, unified),
			files: files{
				// The user manager does not enable pids all the way down.
				"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope/": "",
				"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/pids.max":                "max\n",
				"/sys/fs/cgroup/user.slice/user-1000.slice/pids.max":                                  "10813\n",
				"/sys/fs/cgroup/user.slice/pids.max":                                                  "max\n",
			},
			want: pidsCap{max: 10813, finite: true, file: "/sys/fs/cgroup/user.slice/user-1000.slice/pids.max"},
		},
		{
			name:   "rootless podman",
			cgroup: lines("0::/"),
			mountinfo: lines(
				"600 500 0:60 / / rw,relatime - fuse.fuse-overlayfs fuse-overlayfs rw,user_id=0,group_id=0",
				"604 600 0:61 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs rw",
				"605 604 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup2 rw,nsdelegate"),
			files: files{"/sys/fs/cgroup/pids.max": "2048\n"},
			want:  pidsCap{max: 2048, finite: true, file: "/sys/fs/cgroup/pids.max"},
		},
		{
			name:      "bare host, process in the root cgroup",
			cgroup:    lines("0::/"),
			mountinfo: lines(rootMount, procMount, unified),
			files:     files{"/sys/fs/cgroup/cgroup.procs": "1\n"},
		},
		{
			name:      "hybrid, pids in v1",
			cgroup:    lines("8:pids:/user.slice/user-1000.slice", "1:name=systemd:/user.slice", "0::/user.slice"),
			mountinfo: lines(rootMount, cgroupTmpfs, "35 29 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", v1Pids),
			files: files{
				"/sys/fs/cgroup/unified/user.slice/":                       "",
				"/sys/fs/cgroup/pids/user.slice/user-1000.slice/pids.max":  "400\n",
				"/sys/fs/cgroup/pids/user.slice/pids.max":                  "max\n",
				"/sys/fs/cgroup/pids/system.slice/docker.service/pids.max": "3\n",
			},
			want: pidsCap{max: 400, finite: true, file: "/sys/fs/cgroup/pids/user.slice/user-1000.slice/pids.max"},
		},
		{
			name:      "hybrid, pids in v2",
			cgroup:    lines("4:memory:/", "1:name=systemd:/a", "0::/a"),
			mountinfo: lines(rootMount, cgroupTmpfs, "35 29 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"),
			files:     files{"/sys/fs/cgroup/unified/a/pids.max": "9\n"},
			want:      pidsCap{max: 9, finite: true, file: "/sys/fs/cgroup/unified/a/pids.max"},
		},
		{
			name:      "hybrid, pids in v1 and v2 not mounted",
			cgroup:    lines("8:pids:/", "0::/system.slice"),
			mountinfo: lines(rootMount, cgroupTmpfs, v1Pids),
			files:     files{"/sys/fs/cgroup/pids/": ""},
		},
		{
			name:      "v1, pids line and no mount",
			cgroup:    lines("8:pids:/a", "0::/a"),
			mountinfo: lines(rootMount, "40 23 0:33 / /cg rw - cgroup cgroup rw,memory"),
			files:     files{"/cg/a/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/proc/self/cgroup: no mount shows the hierarchy of cgroup /a"}},
		},
		{
			name:      "v2, no cgroup file system mounted",
			cgroup:    lines("0::/system.slice/x.service"),
			mountinfo: lines(rootMount, procMount),
			files:     files{"/sys/fs/cgroup/system.slice/x.service/pids.max": "4\n"}, // some plain file
			want:      pidsCap{unreadable: []string{"/proc/self/cgroup: no mount shows the hierarchy of cgroup /system.slice/x.service"}},
		},
		{
			name:      "v1 without the pids controller",
			cgroup:    lines("2:memory:/a", "1:name=pids:/a"),
			mountinfo: lines(rootMount, cgroupTmpfs, v1Pids),
			files:     files{"/sys/fs/cgroup/pids/a/pids.max": "4\n"},
		},
		{
			name:      "no cgroup file in proc",
			cgroup:    noFile,
			mountinfo: lines(rootMount, unified),
			files:     files{"/sys/fs/cgroup/pids.max": "4\n"},
		},
		{
			name:      "empty cgroup file, no mountinfo",
			mountinfo: noFile,
		},
		{
			name:      "no mountinfo",
			cgroup:    lines("0::/"),
			mountinfo: noFile,
			files:     files{"/sys/fs/cgroup/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/proc/self/mountinfo: no such file or directory"}},
		},
		{
			name:      "cgroup file that can't be read",
			cgroup:    noFile,
			mountinfo: lines(rootMount, unified),
			files:     files{"/proc/self/cgroup/": ""},
			want:      pidsCap{unreadable: []string{"/proc/self/cgroup: is a directory"}},
		},
		{
			name:      "pids.max that can't be read, the parent's can",
			cgroup:    lines("0::/a/b"),
			mountinfo: lines(rootMount, unified),
			files: files{
				"/sys/fs/cgroup/a/b/pids.max/": "",
				"/sys/fs/cgroup/a/pids.max":    "12\n",
			},
			want: pidsCap{
				max: 12, finite: true, file: "/sys/fs/cgroup/a/pids.max",
				unreadable: []string{"/sys/fs/cgroup/a/b/pids.max: is a directory"},
			},
		},
		{
			name:      "garbage in pids.max",
			cgroup:    lines("0::/a/b/c/d/e"),
			mountinfo: lines(rootMount, unified),
			files: files{
				"/sys/fs/cgroup/a/b/c/d/e/pids.max": "-5\n",
				"/sys/fs/cgroup/a/b/c/d/pids.max":   "",
				"/sys/fs/cgroup/a/b/c/pids.max":     "12 \n",
				"/sys/fs/cgroup/a/b/pids.max":       "99999999999999999999\n",
				"/sys/fs/cgroup/a/pids.max":         strings.Repeat("x", 60),
			},
			want: pidsCap{unreadable: []string{
				`/sys/fs/cgroup/a/b/c/d/e/pids.max: neither a number nor max: "-5"`,
				`/sys/fs/cgroup/a/b/c/d/pids.max: neither a number nor max: ""`,
				`/sys/fs/cgroup/a/b/c/pids.max: neither a number nor max: "12 "`,
				`/sys/fs/cgroup/a/b/pids.max: neither a number nor max: "99999999999999999999"`,
				`/sys/fs/cgroup/a/pids.max: neither a number nor max: "` + strings.Repeat("x", 40) + `"`,
			}},
		},
		{
			name:      "nested caps, the parent's is smaller",
			cgroup:    lines("0::/a/b"),
			mountinfo: lines(rootMount, unified),
			files: files{
				"/sys/fs/cgroup/a/b/pids.max": "500\n",
				"/sys/fs/cgroup/a/pids.max":   "50\n",
			},
			want: pidsCap{max: 50, finite: true, file: "/sys/fs/cgroup/a/pids.max"},
		},
		{
			name:      "equal caps, the nearest holds",
			cgroup:    lines("0::/a/b"),
			mountinfo: lines(rootMount, unified),
			files: files{
				"/sys/fs/cgroup/a/b/pids.max": "50\n",
				"/sys/fs/cgroup/a/pids.max":   "50\n",
			},
			want: pidsCap{max: 50, finite: true, file: "/sys/fs/cgroup/a/b/pids.max"},
		},
		{
			name:      "a cap of 0",
			cgroup:    lines("0::/a"),
			mountinfo: lines(rootMount, unified),
			files:     files{"/sys/fs/cgroup/a/pids.max": "0\n"},
			want:      pidsCap{finite: true, file: "/sys/fs/cgroup/a/pids.max"},
		},
		{
			// mountinfo escapes both of its paths, /proc/self/cgroup does not.
			name:      "escapes",
			cgroup:    lines(`0::/a\x2d b/c`),
			mountinfo: lines(`30 1 0:26 /a\134x2d\040b /c\040g\011\012\134040 rw - cgroup2  rw`),
			files:     files{"/c g\t\n\\040/c/pids.max": "31\n"},
			want:      pidsCap{max: 31, finite: true, file: "/c g\t\n\\040/c/pids.max"},
		},
		{
			name:      "process outside the namespace root",
			cgroup:    lines("0::/../other"),
			mountinfo: lines(rootMount, unified),
			files: files{
				"/sys/fs/cgroup/pids.max":       "4\n",
				"/sys/fs/cgroup/other/pids.max": "5\n",
				"/sys/fs/other/pids.max":        "6\n",
			},
			want: pidsCap{unreadable: []string{"/sys/fs/cgroup: shows /, which does not hold cgroup /../other"}},
		},
		{
			name:      "process above the namespace root",
			cgroup:    lines("4:pids:/../.."),
			mountinfo: lines(rootMount, cgroupTmpfs, v1Pids),
			files:     files{"/sys/fs/cgroup/pids/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/sys/fs/cgroup/pids: shows /, which does not hold cgroup /../.."}},
		},
		{
			name:      "process and mount outside the namespace root",
			cgroup:    lines("0::/../other/x"),
			mountinfo: lines("30 1 0:26 /../other /cg rw - cgroup2 cgroup2 rw"),
			files: files{
				"/cg/x/pids.max": "8\n",
				"/cg/pids.max":   "7\n",
			},
			want: pidsCap{max: 7, finite: true, file: "/cg/pids.max"},
		},
		{
			// After unshare -C the old mount shows from above the new root:
			// it binds us, and which of its children is ours is not told.
			name:      "mount from above the namespace root",
			cgroup:    lines("0::/"),
			mountinfo: lines("30 1 0:26 /../.. /cg rw - cgroup2 cgroup2 rw"),
			files: files{
				"/cg/pids.max":     "90\n",
				"/cg/a/pids.max":   "4\n",
				"/cg/a/b/pids.max": "3\n",
			},
			want: pidsCap{
				max: 90, finite: true, file: "/cg/pids.max",
				unreadable: []string{"/cg: shows /../.., and not by which name to reach cgroup /"},
			},
		},
		{
			name:      "mount of a relative's directory",
			cgroup:    lines("0::/"),
			mountinfo: lines("30 1 0:26 /../other /cg rw - cgroup2 cgroup2 rw"),
			files:     files{"/cg/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/cg: shows /../other, which does not hold cgroup /"}},
		},
		{
			name:      "mount of a sibling's directory",
			cgroup:    lines("0::/docker/ab"),
			mountinfo: lines("30 1 0:26 /docker/a /cg rw - cgroup2 cgroup2 rw"),
			files:     files{"/cg/pids.max": "4\n", "/cg/b/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/cg: shows /docker/a, which does not hold cgroup /docker/ab"}},
		},
		{
			name:      "mount of a child's directory",
			cgroup:    lines("0::/docker"),
			mountinfo: lines("30 1 0:26 /docker/a /cg rw - cgroup2 cgroup2 rw"),
			files:     files{"/cg/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/cg: shows /docker/a, which does not hold cgroup /docker"}},
		},
		{
			name:      "paths that the kernel does not write",
			cgroup:    lines("0::/a/../b", "5:pids:a"),
			mountinfo: lines(rootMount, unified, "40 23 0:33 / /cg rw - cgroup cgroup rw,pids"),
			files:     files{"/sys/fs/cgroup/b/pids.max": "4\n", "/cg/a/pids.max": "5\n"},
			want:      pidsCap{unreadable: []string{"/cg: shows /, which does not hold cgroup a"}},
		},
		{
			name:      "own directory is not there",
			cgroup:    lines("0::/a/b"),
			mountinfo: lines(rootMount, unified),
			files:     files{"/sys/fs/cgroup/a/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/sys/fs/cgroup: no directory for cgroup /a/b"}},
		},
		{
			name:   "two mounts, one shows our cgroup",
			cgroup: lines("0::/a/b"),
			mountinfo: lines(rootMount,
				"40 23 0:26 /z /cg1 rw - cgroup2 cgroup2 rw",
				"41 23 0:26 /a/b /cg2 rw - cgroup2 cgroup2 rw"),
			files: files{"/cg1/pids.max": "4\n", "/cg2/pids.max": "60\n"},
			want:  pidsCap{max: 60, finite: true, file: "/cg2/pids.max"},
		},
		{
			name:   "two mounts, the wider one shows the smaller cap",
			cgroup: lines("0::/a/b"),
			mountinfo: lines(rootMount,
				"40 23 0:26 /a/b /cg1 rw - cgroup2 cgroup2 rw",
				"41 23 0:26 / /cg2 rw - cgroup2 cgroup2 rw"),
			files: files{
				"/cg1/pids.max":     "60\n",
				"/cg2/a/b/pids.max": "60\n",
				"/cg2/a/pids.max":   "30\n",
			},
			want: pidsCap{max: 30, finite: true, file: "/cg2/a/pids.max"},
		},
		{
			name:   "mounted over, the last one shows",
			cgroup: lines("0::/a"),
			mountinfo: lines(rootMount, unified,
				"41 30 0:26 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw"),
			files: files{"/sys/fs/cgroup/pids.max": "70\n", "/sys/fs/cgroup/a/pids.max": "4\n"},
			want:  pidsCap{max: 70, finite: true, file: "/sys/fs/cgroup/pids.max"},
		},
		{
			name:      "mounted over by something else",
			cgroup:    lines("0::/"),
			mountinfo: lines(rootMount, unified, "41 30 0:50 / /sys/fs/cgroup rw - tmpfs tmpfs rw"),
			files:     files{"/sys/fs/cgroup/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/proc/self/cgroup: no mount shows the hierarchy of cgroup /"}},
		},
		{
			name:      "the directory above the mountpoint mounted over",
			cgroup:    lines("8:pids:/"),
			mountinfo: lines(rootMount, cgroupTmpfs, v1Pids, "41 29 0:50 / /sys/fs/cgroup rw - tmpfs tmpfs rw"),
			files:     files{"/sys/fs/cgroup/pids/pids.max": "4\n"},
			want:      pidsCap{unreadable: []string{"/proc/self/cgroup: no mount shows the hierarchy of cgroup /"}},
		},
		{
			name:   "a mount over a part of the hierarchy",
			cgroup: lines("0::/a/b"),
			mountinfo: lines(rootMount, unified,
				"41 30 0:50 / /sys/fs/cgroup/a/b/pids.max rw - tmpfs tmpfs rw",
				"42 30 0:50 / /sys/fs/cgroup/a/bc rw - tmpfs tmpfs rw"),
			files: files{
				"/sys/fs/cgroup/a/b/pids.max": "4\n",
				"/sys/fs/cgroup/a/pids.max":   "80\n",
			},
			want: pidsCap{
				max: 80, finite: true, file: "/sys/fs/cgroup/a/pids.max",
				unreadable: []string{"/sys/fs/cgroup/a/b/pids.max: another mount covers it"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			layout := files{"/proc/self/": ""}
			for name, content := range tt.files {
				layout[name] = content
			}
			for name, content := range map[string]string{"cgroup": tt.cgroup, "mountinfo": tt.mountinfo} {
				if content != noFile {
					layout["/proc/self/"+name] = content
				}
			}
			if got := readPidsCap(layout.build(t)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestReadPidsCapPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads every file; the layouts with a directory in place of a file cover this for root")
	}
	root := files{
		"/proc/self/cgroup":         lines("0::/a"),
		"/proc/self/mountinfo":      lines(rootMount, unified),
		"/sys/fs/cgroup/a/pids.max": "4\n",
		"/sys/fs/cgroup/pids.max":   "40\n",
	}.build(t)
	want := pidsCap{
		max: 40, finite: true, file: "/sys/fs/cgroup/pids.max",
		unreadable: []string{"/sys/fs/cgroup/a/pids.max: permission denied"},
	}
	closed := filepath.Join(root, "sys/fs/cgroup/a")
	for _, name := range []string{filepath.Join(closed, "pids.max"), closed} {
		if err := os.Chmod(name, 0); err != nil {
			t.Fatal(err)
		}
		if got := readPidsCap(root); !reflect.DeepEqual(got, want) {
			t.Errorf("mode 0 on %s:\ngot  %+v\nwant %+v", name, got, want)
		}
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// The answer for the test process itself depends on where it runs; what it
// names has to be there.
func TestReadPidsCapHere(t *testing.T) {
	got := readPidsCap("/")
	t.Logf("%+v", got)
	if !got.finite {
		if got.max != 0 || got.file != "" {
			t.Errorf("not finite, and yet %+v", got)
		}
		return
	}
	text, err := os.ReadFile(got.file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(text)) != strconv.FormatInt(got.max, 10) {
		t.Errorf("%s holds %q, got %d", got.file, text, got.max)
	}
}

func TestParseMountinfo(t *testing.T) {
	got := parseMountinfo(strings.Join([]string{
		"1 1 0:2 / / rw - rootfs rootfs rw",                                            // its own parent
		"36 1 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=remount", // one optional field
		"37 36 0:5 / /mnt2/a rw shared:2 master:1 propagate_from:7 - cgroup a\\040b rw,pids,name=x",
		"38 99 0:6 / /b rw - cgroup2  rw", // parent not listed, empty source
		"",
		"39 1 0:7 / /c rw",                          // no hyphen
		"40 1 0:7 / /d - cgroup2 x rw",              // hyphen too early
		"41 1 0:7 / /e rw - cgroup2 x",              // no super options
		"42 1 0:7 / f rw - cgroup2 x rw",            // relative
		"43 1 0:7 / /g/../h rw - cgroup2 x rw",      // not clean
		"-1 1 0:7 / /i rw - cgroup2 x rw",           // bad ids
		"44 -1 0:7 / /j rw - cgroup2 x rw",          //
		"45 1 0:7 /.. /k\\134\\1 rw - cgroup2 x rw", // no newline, half an escape
	}, "\n"))
	want := []mount{
		{id: 1, parent: noParent, root: "/", point: "/", fstype: "rootfs", super: []string{"rw"}},
		{id: 36, parent: 1, root: "/mnt1", point: "/mnt2", fstype: "ext3", super: []string{"rw", "errors=remount"}},
		{id: 37, parent: 36, root: "/", point: "/mnt2/a", fstype: "cgroup", super: []string{"rw", "pids", "name=x"}},
		{id: 38, parent: noParent, root: "/", point: "/b", fstype: "cgroup2", super: []string{"rw"}},
		{id: 45, parent: 1, root: "/..", point: `/k\\1`, fstype: "cgroup2", super: []string{"rw"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestServedBy(t *testing.T) {
	mounts := parseMountinfo(lines(
		"50 23 0:9 / /moved/in rw - tmpfs moved rw", // listed ahead of its parent
		"23 1 8:1 / / rw - ext4 root rw",
		"51 23 0:9 / /sys rw - sysfs hidden rw",
		"52 51 0:9 / /sys/a rw - tmpfs hidden-child rw",
		"53 51 0:9 / /sys rw - sysfs over rw",
		"54 53 0:9 / /sys/a/b rw - tmpfs deep rw",
		"55 23 0:9 / /twice rw - tmpfs first rw", // two on one point below one parent
		"56 23 0:9 / /twice rw - tmpfs second rw",
		"60 61 0:9 / /ring rw - tmpfs ring rw", // parents in a circle
		"61 60 0:9 / /ring rw - tmpfs ring rw",
	))
	for file, want := range map[string]int64{
		"/x":          23,
		"/system":     23,
		"/moved/in/x": 50,
		"/moved/inn":  23,
		"/sys":        53,
		"/sys/a":      53,
		"/sys/a/b":    54,
		"/sys/a/b/c":  54,
		"/twice":      56,
		"/ring":       23,
	} {
		if at := servedBy(mounts, file); at < 0 || mounts[at].id != want {
			t.Errorf("%s is served by line %d, want mount %d", file, at, want)
		}
	}
	if at := servedBy(nil, "/x"); at != -1 {
		t.Errorf("with no mounts: got %d", at)
	}
}

// Whatever is in the two files, no directory outside the mount is looked at.
func FuzzParseMountinfo(f *testing.F) {
	f.Add(lines(rootMount, procMount, cgroupTmpfs, v1Pids), "/a/b")
	f.Add(lines(rootMount, unified, "41 30 0:26 /a /sys/fs/cgroup rw - cgroup2  rw"), "/a")
	f.Add(lines("30 1 0:26 /../.. /cg rw - cgroup2 cgroup2 rw"), "/../x")
	f.Add(lines(`60 61 0:26 /a\134x2d\040b /c\040g rw - cgroup2 c rw`, "61 60 0:1 / / rw - x x rw"), `/a\x2d b`)
	f.Fuzz(func(t *testing.T, mountinfo, self string) {
		mounts := parseMountinfo(mountinfo)
		if len(mounts) > 50 {
			t.Skip("long lists only take time")
		}
		for _, m := range mounts {
			if !path.IsAbs(m.point) || path.Clean(m.point) != m.point || m.id < 0 || m.parent < noParent {
				t.Fatalf("line taken: %+v", m)
			}
			listed := slices.ContainsFunc(mounts, func(other mount) bool { return other.id == m.parent })
			if m.parent == m.id || m.parent != noParent && !listed {
				t.Fatalf("no such parent: %+v", m)
			}
			if at := servedBy(mounts, m.point); at >= len(mounts) || at >= 0 && !isWithin(m.point, mounts[at].point) {
				t.Fatalf("%q served by %d", m.point, at)
			}
			dirs, err := visibleDirs(m, self)
			if err == nil && len(dirs) == 0 {
				t.Fatalf("neither directories nor a reason: %+v", m)
			}
			for _, dir := range dirs {
				if !isWithin(dir, m.point) || path.Clean(dir) != dir {
					t.Fatalf("%q is not below %q", dir, m.point)
				}
			}
		}
	})
}
