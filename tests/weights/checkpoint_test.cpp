// Whole model folders: the committed golden models and the public ones.
#include <gtest/gtest.h>

#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

namespace fs = std::filesystem;

/// Opens a folder, checks it and reads every tensor that the model needs, as float and as double.
void load_all(const fs::path& folder) {
  SCOPED_TRACE(folder.string());
  const auto config = read_config(folder);
  ASSERT_TRUE(config) << config.error().message;
  const auto source = open_safetensors(folder);
  ASSERT_TRUE(source) << source.error().message;
  const auto prefix = check_tensors(**source, *config, folder.string());
  ASSERT_TRUE(prefix) << prefix.error().message;
  for (const TensorSpec& spec : tensors_of(*config)) {
    const TensorInfo* tensor = (*source)->find(spec.name == "lm_head.weight" ? spec.name : *prefix + spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    EXPECT_EQ(tensor->shape, spec.shape);
    std::vector<float> f32(static_cast<std::size_t>(tensor->elements()));
    std::vector<double> f64(f32.size());
    const auto a = (*source)->read(*tensor, 0, std::span(f32));
    ASSERT_TRUE(a) << a.error().message;
    const auto b = (*source)->read(*tensor, 0, std::span(f64));
    ASSERT_TRUE(b) << b.error().message;
    for (std::size_t i = 0; i < f32.size(); ++i) ASSERT_EQ(f32[i], static_cast<float>(f64[i])) << spec.name << " " << i;
  }
}

TEST(Checkpoint, LoadsEveryGoldenFolder) {
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(STET_SOURCE_DIR "/tests/golden")) {
    if (!entry.is_directory()) continue;
    load_all(entry.path());
    ++folders;
  }
  EXPECT_GE(folders, 10);
}

TEST(Checkpoint, LoadsTheBundledModel) {
  load_all(STET_SOURCE_DIR "/models/shakespeare-char");
}

TEST(Checkpoint, LoadsPublicFolders) {
  for (const char* name : {"tiny-gpt2-wide", "gpt-nano-sort", "stories260K"}) {
    const fs::path folder = fs::path(STET_SHARED_DIR) / "data" / name;
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not here";
    load_all(folder);
  }
}

TEST(Checkpoint, RandomModels) {
  for (const char* spec : {"random:gpt2", "random:gpt2-medium", "random:char", "random:char,ctx=16384,seed=7",
                           "random:llama-tiny", "random:llama-1b,seed=3"}) {
    const auto model = make_random(spec);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_TRUE(check_tensors(*model->source, model->config, spec));
  }
}

}  // namespace
}  // namespace stet::weights
