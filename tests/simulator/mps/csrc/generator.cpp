#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

namespace simulator {

namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(at::Generator cpu)
      : GeneratorImpl(c10::Device(c10::kMPS, 0), c10::DispatchKeySet(c10::DispatchKey::MPS)), cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu_.set_offset(offset); }
  uint64_t get_offset() const override { return cpu_.get_offset(); }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }

 private:
  Generator* clone_impl() const override { return new Generator(cpu_.clone()); }

  at::Generator cpu_;
};

}  // namespace

at::Generator new_generator() { return at::make_generator<Generator>(at::make_generator<at::CPUGeneratorImpl>()); }

const at::Generator& default_generator() {
  static const auto& only = *new at::Generator(new_generator());
  return only;
}

const at::Generator& on_cpu(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

}  // namespace simulator
