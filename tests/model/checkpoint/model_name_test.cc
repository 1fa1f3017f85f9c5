#include "model/checkpoint/model_name.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(ModelNameTest, IsTheDirectorysAsItWasGiven) {
  for (const char* path : {"/models/small", "/models/small/", "/models/small/.", "small", "./small",
                           "small//", "/models/large/../small"}) {
    EXPECT_EQ(ModelNameOf(path), "small") << path;
  }
  EXPECT_EQ(ModelNameOf("."), std::filesystem::current_path().filename().string());
}

TEST(ModelNameTest, OfASnapshotIsItsRepositorys) {
  const std::string cache = "/root/.cache/huggingface/hub/";
  EXPECT_EQ(ModelNameOf(cache + "models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2/"),
            "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(ModelNameOf(cache + "models--gpt2/snapshots/607a30d7"), "gpt2");
  EXPECT_EQ(ModelNameOf(cache + "models--gpt2"), "models--gpt2");
  EXPECT_EQ(ModelNameOf("/data/snapshots/today"), "today");
}

}  // namespace
}  // namespace lockstep
