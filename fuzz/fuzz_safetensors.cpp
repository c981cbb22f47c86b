// Any bytes as a .safetensors file: opened, checked against a small GPT-2, read to the end. And as the text of a
// header, without the length that a fuzzer finds hard to keep in step. More seeds: tests/golden/*/*.safetensors.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "weights/checkpoint.hpp"
#include "weights/safetensors_header.hpp"

namespace {

using namespace stet;

void require(bool condition) {
  if (!condition) std::abort();
}

void read_through(const weights::Source& source) {
  for (const weights::TensorInfo& tensor : source.tensors()) {
    require(source.find(tensor.name) == &tensor);
    std::vector<float> f32(static_cast<std::size_t>(tensor.elements()));
    std::vector<double> f64(f32.size());
    require(source.read(tensor, 0, std::span(f32)).has_value() == tensor.readable());
    require(source.read(tensor, 0, std::span(f64)).has_value() == tensor.readable());
  }
}

void as_file(std::span<const std::uint8_t> bytes) {
  static const int fd = ::memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes.size())) == 0);
  require(::pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto source = weights::open_safetensors(path);
  if (!source) return require(!source.error().message.empty());
  static const ModelConfig config = weights::make_random("random:char,layers=1,width=4,vocab=2,ctx=2")->config;
  (void)weights::check_gpt2(**source, config, path);
  // Empty tensors may have any shape, full ones are as large as the file says: both are safe to hold.
  read_through(**source);
}

void as_header(std::string_view text, std::uint64_t data_size) {
  const auto tensors = weights::parse_safetensors_header(text, data_size, "fuzz");
  if (!tensors) return require(!tensors.error().message.empty());
  std::uint64_t at = 0;
  for (const auto& tensor : *tensors) {
    require(tensor.begin == at && tensor.end >= at && tensor.info.elements() >= 0);
    at = tensor.end;
  }
  require(at == data_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  as_file({data, size});
  if (size >= 1) as_header({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  return 0;
}
