#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "base/file.hpp"
#include "weights/checkpoint.hpp"
#include "weights/convert.hpp"
#include "weights/json.hpp"
#include "weights/printable.hpp"
#include "weights/safetensors_header.hpp"

namespace stet::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Place {
  std::size_t shard = 0;
  std::uint64_t offset = 0;  // in the file
};

class SafetensorsSource final : public Source {
 public:
  /// Opens one file more. Its tensors are checked by themselves; seal() comes after the last.
  Result<void> add(const fs::path& path) {
    auto file = base::File::open(path);
    if (!file) return pass(file);
    std::string text(std::min<std::uint64_t>(8, file->size()), '\0');
    if (auto ok = file->read(0, std::as_writable_bytes(std::span(text))); !ok) return pass(ok);
    const auto length = parse_header_length(text, file->size(), path.string());
    if (!length) return pass(length);
    text.resize(*length);
    if (auto ok = file->read(8, std::as_writable_bytes(std::span(text))); !ok) return pass(ok);
    const std::uint64_t data = 8 + *length;
    auto tensors = parse_safetensors_header(text, file->size() - data, path.string());
    if (!tensors) return pass(tensors);
    for (StoredTensor& tensor : *tensors) {
      found_.emplace_back(std::move(tensor.info), Place{shards_.size(), data + tensor.begin});
    }
    shards_.push_back(std::move(*file));
    return {};
  }

  /// Sorts the tensors by name. Code::corrupt when two files hold one name.
  Result<void> seal() {
    std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first.name, a.second.shard) < std::tie(b.first.name, b.second.shard);
    });
    for (auto& [info, place] : found_) {
      if (!infos_.empty() && infos_.back().name == info.name) {
        return fail(Code::corrupt,
                    fmt::format("tensor {} is in both {} and {}", printable(info.name),
                                shards_[places_.back().shard].path().string(), shards_[place.shard].path().string()));
      }
      infos_.push_back(std::move(info));
      places_.push_back(place);
    }
    found_.clear();
    return {};
  }

  std::span<const TensorInfo> tensors() const noexcept override { return infos_; }
  const fs::path& file_of(std::size_t tensor) const noexcept { return shards_[places_[tensor].shard].path(); }

  Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<float> out) const override {
    return read_as(DType::f32, tensor.name, begin, out);
  }
  Result<void> read(const TensorInfo& tensor, std::int64_t begin, std::span<double> out) const override {
    return read_as(DType::f64, tensor.name, begin, out);
  }

 private:
  template <class To>
  Result<void> read_as(DType wanted, const std::string& name, std::int64_t begin, std::span<To> out) const {
    const auto index = locate(name, begin, out.size());
    if (!index) return pass(index);
    const DType type = infos_[*index].type;
    std::uint64_t offset = places_[*index].offset + static_cast<std::uint64_t>(begin) * size_of(type);
    if (type == wanted) return read_bytes(*index, offset, std::as_writable_bytes(out));
    alignas(64) std::array<std::byte, std::size_t{64} << 10> piece;
    while (!out.empty()) {
      const std::size_t count = std::min(out.size(), piece.size() / size_of(type));
      const auto raw = std::span(piece).first(count * size_of(type));
      if (auto ok = read_bytes(*index, offset, raw); !ok) return ok;
      convert(type, raw, out.first(count));
      out = out.subspan(count);
      offset += raw.size();
    }
    return {};
  }

  Result<void> read_bytes(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
    auto ok = shards_[places_[tensor].shard].read(offset, out);
    if (!ok) ok.error().message += fmt::format(", while reading tensor {}", printable(infos_[tensor].name));
    return ok;
  }

  std::vector<base::File> shards_;
  std::vector<std::pair<TensorInfo, Place>> found_;  // before seal()
  std::vector<TensorInfo> infos_;                    // by name
  std::vector<Place> places_;                        // of infos_
};

/// Tensor name -> shard.
using WeightMap = std::map<std::string, std::string, std::less<>>;

Result<WeightMap> read_index(const fs::path& path) {
  const auto text = base::read_text(path, kMaxHeaderBytes);
  if (!text) return pass(text);
  const auto index = parse_json(*text, path.string());
  if (!index) return pass(index);
  const auto refuse = [&](std::string_view why) {
    return fail(Code::corrupt, fmt::format("{}: {}", path.string(), why));
  };
  if (!index->is_object()) return refuse("is not an object");
  const auto map = index->find("weight_map");
  if (map == index->end() || !map->is_object()) return refuse("has no weight_map object");
  WeightMap shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string())
      return refuse(fmt::format("tensor {}: shard is {}, not a file name", printable(name), spelled(shard)));
    const auto& file = shard.get_ref<const std::string&>();
    // Names are plain, so that an index can never reach outside its folder.
    if (file.empty() || file == "." || file == ".." || file.find_first_of(std::string_view("/\0", 2)) != file.npos) {
      return refuse(fmt::format("tensor {}: shard \"{}\" is not the name of a file in this folder", printable(name),
                                printable(file)));
    }
    shards.emplace(name, file);
  }
  return shards;
}

Result<void> check_index(const SafetensorsSource& source, const WeightMap& map, const fs::path& index) {
  const auto refuse = [&](std::string_view why) {
    return fail(Code::corrupt, fmt::format("{}: {}", index.string(), why));
  };
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const std::string& name = source.tensors()[i].name;
    const auto listed = map.find(name);
    const std::string shard = source.file_of(i).filename().string();
    if (listed == map.end())
      return refuse(fmt::format("tensor {} of {} is not in weight_map", printable(name), printable(shard)));
    if (listed->second != shard) {
      return refuse(
          fmt::format("tensor {} is in {}, not in {}", printable(name), printable(shard), printable(listed->second)));
    }
  }
  for (const auto& [name, shard] : map) {
    if (source.find(name) == nullptr)
      return refuse(fmt::format("tensor {} is not in {}", printable(name), printable(shard)));
  }
  return {};
}

Result<std::unique_ptr<Source>> open_sharded(const fs::path& folder, const fs::path& index) {
  const auto map = read_index(index);
  if (!map) return pass(map);
  std::vector<std::string> shards;
  for (const auto& [name, shard] : *map) shards.push_back(shard);
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  auto source = std::make_unique<SafetensorsSource>();
  for (const std::string& shard : shards) {
    if (auto ok = source->add(folder / shard); !ok) return pass(ok);
  }
  if (auto ok = source->seal(); !ok) return pass(ok);
  if (auto ok = check_index(*source, *map, index); !ok) return pass(ok);
  return source;
}

Result<std::unique_ptr<Source>> open_single(const fs::path& path) {
  auto source = std::make_unique<SafetensorsSource>();
  if (auto ok = source->add(path); !ok) return pass(ok);
  if (auto ok = source->seal(); !ok) return pass(ok);
  return source;
}

}  // namespace

Result<std::unique_ptr<Source>> open_safetensors(const fs::path& path) {
  std::error_code error;
  const auto refuse = [&] { return fail(Code::io, fmt::format("{}: {}", path.string(), error.message())); };
  // What is no folder, or is not there, is for open() to explain.
  if (!fs::is_directory(path, error)) return open_single(path);
  const fs::path single = path / "model.safetensors", index = path / "model.safetensors.index.json";
  if (fs::exists(single, error)) return open_single(single);
  if (error) return refuse();
  if (fs::exists(index, error)) return open_sharded(path, index);
  if (error) return refuse();
  return fail(Code::not_found, fmt::format("{}: has neither {} nor {}", path.string(), single.filename().string(),
                                           index.filename().string()));
}

}  // namespace stet::weights
