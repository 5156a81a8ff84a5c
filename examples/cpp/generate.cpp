// Greedy generation from a bundle, by FORMAT.md alone: token ids in, token ids out. For bundles with float32 caches.
//
//   c++ -std=c++17 -O2 generate.cpp -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime -o generate
//   ./generate BUNDLE 16 1 504 260 2
//
// Needs the library of ONNX Runtime 1.31 or later (the one in the wheel of PyPI will do), its headers, of which older ones
// are good as well, and the single header of nlohmann/json. Debian 13 has both: libonnxruntime-dev, nlohmann-json3-dev.
// A tokenizer for C++ that reads the bundle's tokenizer.json: mlc-ai/tokenizers-cpp.

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

using json = nlohmann::json;

// The tensors of one sequence, bound in place: what a step writes is what the next one reads.
struct Cache {
  std::vector<std::vector<float>> memory;
  std::vector<std::vector<int64_t>> shapes;
};

class Bundle {
 public:
  Bundle(const std::string& folder, int64_t capacity)
      : manifest_(json::parse(std::ifstream(folder + "/manifest.json"))),
        prefill_(env_, (folder + "/" + file("prefill")).c_str(), Ort::SessionOptions{}),
        decode_(env_, (folder + "/" + file("decode")).c_str(), Ort::SessionOptions{}) {
    for (const json& port : manifest_["graphs"]["prefill"]["inputs"]) {
      const std::string kind = port["role"];
      if (kind == "past_state") throw std::runtime_error("layers with states need two places each: FORMAT.md, 3.7");
      if (kind.rfind("past_", 0) != 0) continue;
      std::vector<int64_t> shape;
      int64_t size = 1;
      for (const json& dimension : port["shape"]) {
        const bool named = dimension.is_string();
        shape.push_back(!named ? dimension.get<int64_t>() : dimension == "batch" ? 1 : capacity);
        size *= shape.back();
      }
      cache_.memory.emplace_back(size, 0.0f);
      cache_.shapes.push_back(shape);
    }
  }

  // Append tokens; the logits [vocabulary] after the last of them.
  std::vector<float> step(const std::string& role, std::vector<int64_t> ids) {
    const json& graph = manifest_["graphs"][role];
    const int64_t count = static_cast<int64_t>(ids.size());
    const auto total = static_cast<int32_t>(length_ + count);
    std::array<int32_t, 1> last{total - 1}, longest{total}, queries{static_cast<int32_t>(count)};
    std::array<int64_t, 2> index{0, count - 1};
    std::vector<float> logits(manifest_["architecture"]["vocab_size"].get<size_t>());

    Ort::IoBinding binding(role == "prefill" ? prefill_ : decode_);
    size_t past = 0, present = 0;
    for (const json& port : graph["inputs"]) {
      const std::string kind = port["role"], name = port["name"];
      if (kind == "input_ids") binding.BindInput(name.c_str(), tensor(ids.data(), ids.size(), {1, count}));
      if (kind == "seqlens_k") binding.BindInput(name.c_str(), tensor(last.data(), 1, {1}));
      if (kind == "total_sequence_length") binding.BindInput(name.c_str(), tensor(longest.data(), 1, {}));
      if (kind == "logits_index") binding.BindInput(name.c_str(), tensor(index.data(), 2, {1, 2}));
      if (kind == "query_seqlens") binding.BindInput(name.c_str(), tensor(queries.data(), 1, {1}));
      if (kind.rfind("past_", 0) == 0) binding.BindInput(name.c_str(), cached(past++));
    }
    for (const json& port : graph["outputs"]) {
      const std::string kind = port["role"], name = port["name"];
      if (kind == "logits") {
        binding.BindOutput(name.c_str(), tensor(logits.data(), logits.size(), {1, static_cast<int64_t>(logits.size())}));
      } else {
        binding.BindOutput(name.c_str(), cached(present++));
      }
    }
    (role == "prefill" ? prefill_ : decode_).Run(Ort::RunOptions{}, binding);
    length_ += count;
    return logits;
  }

  std::set<int64_t> ends() const { return manifest_["tokens"]["eos"].get<std::set<int64_t>>(); }

 private:
  std::string file(const char* role) const { return manifest_["graphs"][role]["file"].get<std::string>(); }

  template <typename T>
  Ort::Value tensor(T* data, size_t count, std::vector<int64_t> shape) {
    return Ort::Value::CreateTensor<T>(memory_, data, count, shape.data(), shape.size());
  }

  Ort::Value cached(size_t i) { return tensor(cache_.memory[i].data(), cache_.memory[i].size(), cache_.shapes[i]); }

  Ort::Env env_{ORT_LOGGING_LEVEL_WARNING, "onnxlm"};
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  json manifest_;
  Ort::Session prefill_, decode_;
  Cache cache_;
  int64_t length_ = 0;
};

static int64_t likeliest(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

static void generate(const std::string& folder, int64_t count, const std::vector<int64_t>& ids) {
  Bundle bundle(folder, static_cast<int64_t>(ids.size()) + count);
  const std::set<int64_t> ends = bundle.ends();
  int64_t token = likeliest(bundle.step("prefill", ids));
  for (int64_t made = 1; std::cout << token << ' ', made < count && !ends.count(token); made++) {
    token = likeliest(bundle.step("decode", {token}));
  }
  std::cout << '\n';
}

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: generate BUNDLE COUNT ID…\n";
    return 2;
  }
  try {
    std::vector<int64_t> ids;
    for (int i = 3; i < argc; i++) ids.push_back(std::stoll(argv[i]));
    generate(argv[1], std::stoll(argv[2]), ids);
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << '\n';
    return 1;
  }
}
