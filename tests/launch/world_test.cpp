#include "harness/launch/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "harness/core/error.h"

namespace assay {
namespace {

using Variables = std::map<std::string, std::string>;

World world_of(const Variables& variables) {
  return world_from_environment([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    world_of(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"GROUP_RANK", "1"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "1234"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(World, WithoutALauncherItIsOneProcess) {
  const World world = world_of({});
  EXPECT_FALSE(world.launched);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.world_size, 1);
}

TEST(World, TorchrunsVariablesAreRead) {
  const World world = world_of(kTorchrun);
  EXPECT_TRUE(world.launched);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.world_size, 8);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_world_size, 2);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.master_addr, "node7");
  EXPECT_EQ(world.master_port, 1234);
  EXPECT_EQ(world.restart_count, 2);
  EXPECT_TRUE(world.agent_store);
  EXPECT_EQ(world.error_file, "/tmp/e.json");
  EXPECT_FALSE(world_of(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).agent_store);
}

TEST(World, OnlyRankZeroTakesTheListeningSocket) {
  EXPECT_FALSE(world_of(with(kTorchrun, "ASSAY_LISTEN_FD", "5")).listen_fd);
  EXPECT_EQ(world_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"ASSAY_LISTEN_FD", "5"}}).listen_fd, 5);
}

TEST(World, EveryLauncherOfTheTableIsFoundInItsOrder) {
  // Each next launcher in the order of precedence is hidden by the ones before it.
  Variables variables{{"SLURM_PROCID", "6"},  {"SLURM_NTASKS", "8"},
                      {"SLURM_LOCALID", "2"}, {"SLURM_NTASKS_PER_NODE", "4"},
                      {"SLURM_NODEID", "1"},  {"SLURM_JOB_NODELIST", "gpu[07-08],other"}};
  World world = world_of(variables);
  EXPECT_EQ(world.rank, 6);
  EXPECT_EQ(world.local_rank, 2);
  EXPECT_EQ(world.local_world_size, 4);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.master_addr, "gpu07");
  variables.insert({{"MV2_COMM_WORLD_RANK", "5"},
                    {"MV2_COMM_WORLD_SIZE", "8"},
                    {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                    {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(world_of(variables).rank, 5);
  EXPECT_EQ(world_of(variables).local_rank, 1);
  variables.insert({{"PMI_RANK", "4"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "4"}});
  EXPECT_EQ(world_of(variables).rank, 4);
  EXPECT_EQ(world_of(variables).local_rank, 0);
  variables.insert({{"OMPI_COMM_WORLD_RANK", "3"},
                    {"OMPI_COMM_WORLD_SIZE", "8"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(world_of(variables).rank, 3);
  EXPECT_EQ(world_of(variables).local_rank, 3);
  variables.insert({{"RANK", "2"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "8"}});
  EXPECT_EQ(world_of(variables).rank, 2);
  EXPECT_EQ(world_of(variables).local_world_size, 8);
}

TEST(World, PmixWithoutASizeIsLeftToSlurm) {
  const Variables pmix{{"PMIX_RANK", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}};
  EXPECT_EQ(world_of(pmix).world_size, 2);
  EXPECT_EQ(world_of({{"PMIX_RANK", "1"}, {"PMI_SIZE", "4"}}).rank, 1);
  EXPECT_FALSE(world_of({{"SLURM_PROCID", "0"}}).launched) << "an sbatch script is no task";
}

TEST(World, WithoutALocalRankAllRanksAreOnThisNode) {
  const World world = world_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_world_size, 4);
  EXPECT_EQ(world.master_addr, "127.0.0.1");
}

TEST(World, WrongValuesAreRefusedByNameAndValue) {
  const struct {
    const char* name;
    const char* value;
  } cases[] = {{"RANK", "x"},
               {"RANK", ""},
               {"RANK", "-1"},
               {"RANK", "8"},
               {"RANK", "1.0"},
               {"WORLD_SIZE", "0"},
               {"WORLD_SIZE", "1e3"},
               {"LOCAL_RANK", "2"},
               {"LOCAL_WORLD_SIZE", "99999999999"},
               {"MASTER_PORT", "0"},
               {"MASTER_PORT", "65536"},
               {"TORCHELASTIC_USE_AGENT_STORE", "maybe"},
               {"TORCHELASTIC_RESTART_COUNT", "-2"}};
  for (const auto& bad : cases) {
    const std::string message = refusal_of(with(kTorchrun, bad.name, bad.value));
    EXPECT_THAT(message, testing::HasSubstr(bad.name));
    EXPECT_THAT(message, testing::HasSubstr(bad.value));
  }
}

TEST(World, HalfAPlaceIsRefused) {
  EXPECT_THAT(refusal_of({{"RANK", "1"}}), testing::HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refusal_of({{"WORLD_SIZE", "2"}}), testing::HasSubstr("RANK"));
  EXPECT_THAT(refusal_of({{"OMPI_COMM_WORLD_RANK", "1"}}), testing::HasSubstr("OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(refusal_of({{"PMI_SIZE", "2"}}), testing::HasSubstr("PMI_RANK"));
}

TEST(World, SeveralNodesNeedTheAddressOfTheFirst) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_THAT(refusal_of(variables), testing::HasSubstr("MASTER_ADDR"));
  EXPECT_EQ(world_of(with(variables, "MASTER_ADDR", "10.0.0.1")).master_addr, "10.0.0.1");
}

TEST(World, SlurmsListsNameTheFirstHost) {
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("gpu[03-04,07],other"), "gpu03");
  EXPECT_EQ(first_slurm_host("gpu[5,9]-ib,x"), "gpu5-ib");
  EXPECT_THROW(first_slurm_host("gpu[5"), Error);
}

}  // namespace
}  // namespace assay
