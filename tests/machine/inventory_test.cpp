#include "harness/machine/inventory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(Inventory, ReadsAMachineWithTwoNodesAGpuAndACgroup) {
  const TemporaryFolder root;
  write(root.path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Model X 9000 @ 2 GHz\nprocessor : 1\n");
  write(root.path / "proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n");
  write(root.path / "sys/fs/cgroup/memory.max", "209715200\n");
  write(root.path / "sys/fs/cgroup/memory.current", "104857600\n");
  write(root.path / "sys/fs/cgroup/memory.stat",
        "anon 80000000\nfile 20000000\ninactive_anon 7\ninactive_file 4000000\nactive_file 500000\n"
        "slab_reclaimable 60000\nslab_unreclaimable 9\n");
  write(root.path / "sys/fs/cgroup/cpu.max", "50000 100000\n");
  write(root.path / "etc/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 12\"\n");
  write(root.path / "sys/devices/system/node/node0/cpulist", "0-3\n");
  write(root.path / "sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       2048 kB\nNode 0 MemFree: 1 kB\n");
  write(root.path / "sys/devices/system/node/node1/cpulist", "4-7\n");
  write(root.path / "sys/devices/system/node/possible", "0-1\n");
  write(root.path / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n");
  const auto machine = read_inventory(root.path / "runs" / "not_there_yet", root.path);
  EXPECT_EQ(machine["os"], "Some Linux 12");
  EXPECT_EQ(machine["cpu"]["model"], "Model X 9000 @ 2 GHz");
  EXPECT_EQ(machine["cpu"]["num_cores_available"], 1);  // half a core is still one
  EXPECT_EQ(machine["memory"]["total_bytes"], 1073741824);
  // The cgroup leaves less than the machine; cached files and slabs are given back when they are needed.
  EXPECT_EQ(machine["memory"]["available_bytes"], 104857600 + 4000000 + 500000 + 60000);
  ASSERT_EQ(machine["numa_nodes"].size(), 2U);
  EXPECT_EQ(machine["numa_nodes"][0]["cpus"], "0-3");
  EXPECT_EQ(machine["numa_nodes"][0]["total_bytes"], 2097152);
  ASSERT_EQ(machine["gpus"]["found"].size(), 1U);
  EXPECT_EQ(machine["gpus"]["found"][0]["model"], "NVIDIA H200");
  EXPECT_EQ(machine["gpus"]["found"][0]["bus"], "0000:01:00.0");
  EXPECT_EQ(machine["disk"]["path"], root.path.string());
  EXPECT_GT(machine["disk"]["free_bytes"].get<std::int64_t>(), 0);
}

TEST(Inventory, WhatCannotBeReadIsNullWithAReason) {
  const TemporaryFolder root;
  const auto machine = read_inventory(root.path, root.path);
  EXPECT_TRUE(machine["memory"]["available_bytes"].is_null());
  EXPECT_FALSE(machine["memory"]["available_bytes_reason"].get<std::string>().empty());
  EXPECT_TRUE(machine["cpu"]["model"].is_null());
  EXPECT_TRUE(machine["gpus"]["found"].empty());
  EXPECT_FALSE(machine["gpus"]["reason"].get<std::string>().empty());
  EXPECT_TRUE(machine["versions"]["libtorch"].is_null());
}

// A driver's other nodes are no GPU, and a container may be given any of them.
TEST(Inventory, AGpuIsADeviceNodeWithANumber) {
  const TemporaryFolder root;
  EXPECT_FALSE(has_gpu(root.path));
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia", "null"}) write(root.path / "dev" / name, "");
  EXPECT_FALSE(has_gpu(root.path));
  write(root.path / "dev/nvidia3", "");
  EXPECT_TRUE(has_gpu(root.path));
}

TEST(Inventory, NamesTheVariablesThatChangeResultsAndNoOthers) {
  ::setenv("OMP_NUM_THREADS", "3", 1);
  ::setenv("NCCL_DEBUG", "INFO=a", 1);
  ::setenv("UNRELATED_TOKEN", "keep this out", 1);
  const auto variables = read_inventory("/tmp")["environment"];
  EXPECT_EQ(variables["OMP_NUM_THREADS"], "3");
  EXPECT_EQ(variables["NCCL_DEBUG"], "INFO=a");
  EXPECT_FALSE(variables.contains("UNRELATED_TOKEN"));
  EXPECT_FALSE(variables.contains("PATH"));
}

}  // namespace
}  // namespace assay
