// A vision transformer (Dosovitskiy et al., arXiv 2010.11929), hosting any kind of heads: what is
// on an image.
//
//     x = drop([cls; patches W^T + b] + positions);  blocks;  logits = head(LN(x)[:, 0])
#include <fmt/format.h>

#include <cmath>

#include "core/torch.h"
#include "experiments/models/stack.h"

namespace headlab {
namespace {

constexpr double kStd = 0.02;

// N(0, std) cut off at two standard deviations, in place.
void init_truncated(Tensor weight, double std) {
  torch::NoGradGuard no_grad;
  const double end = std::erf(std::sqrt(2.0));  // the share within two of them
  weight.uniform_(-end, end).erfinv_().mul_(std::sqrt(2.0) * std);
}

class Vit : public Model {
 public:
  struct Options : StackOptions {
    int64_t patch = 7;

    Options() { bias = true, norm_eps = 1e-12; }
    void visit(Fields& f) override {
      StackOptions::visit(f);
      f("patch", patch, "pixels a side of a patch; must divide the image", at_least(1));
    }
    void check_data(const DataShape& data, const Complain& complain) const override {
      if (data.height % patch != 0 || data.width % patch != 0)
        complain("patch", fmt::format("{} does not divide the images, of {} by {} pixels", patch,
                                      data.height, data.width));
    }
    Init init() const override { return Init::kPlain; }
  };

  Vit(const Options& options, const DataShape& data) : options_(options), data_(data) {
    require_data(data.channels > 0 && data.answers() > 0,
                 "a vit reads images that have classes, or numbers to predict");
    TORCH_CHECK(data.height % options.patch == 0 && data.width % options.patch == 0, "patches of ",
                options.patch, " of an image ", data.height, " by ", data.width);
    places_ = data.height / options.patch * (data.width / options.patch) + 1;
    auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    cls_ = embed->register_parameter("cls", at::zeros({options.d_model}));
    patch_ = embed->register_module("patch", Linear(pixels(), options.d_model));
    stack_ = &add_stack(*embed, options, {.tokens = &Batch::image}, places_);
    head_ = register_module("head", Linear(options.d_model, data.answers()));
    init_normal(patch_, kStd), init_normal(head_, kStd);
    init_truncated(cls_, kStd);
    for (auto& item : embed->named_parameters())
      if (item.key() == "position.weight") init_truncated(item.value(), kStd);
    aim_at_heads();
  }

  int64_t context() const override { return places_; }
  std::optional<ImageGrid> image_grid() const override {
    const int64_t P = options_.patch;
    return ImageGrid{.rows = data_.height / P,
                     .columns = data_.width / P,
                     .cls_tokens = 1,
                     .patch = static_cast<double>(P)};
  }
  double flops_per_token() const override {
    const auto D = static_cast<double>(options_.d_model), T = static_cast<double>(places_);
    const double ends =
        (T - 1) * static_cast<double>(pixels()) + static_cast<double>(data_.answers());
    return (stack_->flops(places_, 0, /*causal=*/false) + 2 * D * ends) / T;
  }

 private:
  int64_t pixels() const { return data_.channels * options_.patch * options_.patch; }

  // Row by row, each flattened channel, row, column: [B,C,height,width] -> [B,N,C*P*P].
  Tensor patches_of(const Tensor& image) const {
    const int64_t B = image.size(0), P = options_.patch;
    const int64_t rows = data_.height / P, columns = data_.width / P;
    return image.reshape({B, data_.channels, rows, P, columns, P})
        .permute({0, 2, 4, 1, 3, 5})
        .reshape({B, rows * columns, pixels()});
  }

  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    const auto& image = batch.image;
    TORCH_CHECK(image.defined() && image.dim() == 4 && image.size(1) == data_.channels &&
                    image.size(2) == data_.height && image.size(3) == data_.width,
                "this vit reads images [B,", data_.channels, ",", data_.height, ",", data_.width,
                "]");
    const auto embed = [&](int64_t past) {
      const auto patches = patch_(patches_of(image.to(cls_.scalar_type())));  // [B,N,D]
      const auto cls = cls_.expand({image.size(0), 1, options_.d_model});
      return drop_beside_blocks(stack_->at_places(at::cat({cls, patches}, 1), past),
                                is_training() ? options_.dropout : 0, ctx.rng);  // [B,N+1,D]
    };
    const auto x = stack_->forward(embed, {.batch = batch}, ctx, aux);
    return head_(x.select(1, 0));  // [B,classes], or [B,values]
  }

  Options options_;
  DataShape data_;
  int64_t places_ = 0;
  Tensor cls_;
  Stack* stack_ = nullptr;
  Linear patch_{nullptr}, head_{nullptr};
};

const RegisterModel<Vit> vit_model("vit", "vision transformer: what is on an image");

}  // namespace
}  // namespace headlab
