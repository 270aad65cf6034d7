// What transformers assumes of a key that config.json leaves out: the one table;
// tests/test_transformers.py holds it against the library.
#include "experiments/pretrained/hugging_face_settings.h"

namespace headlab {
namespace {

using nlohmann::json;

constexpr const char* kDefaults = R"({
  "gpt2": {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_inner": null, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "scale_attn_weights": true,
    "scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false,
    "tie_word_embeddings": true, "eos_token_id": 50256, "pruned_heads": {}
  },
  "llama": {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": null, "head_dim": null, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_bias": false,
    "mlp_bias": false, "attention_dropout": 0.0, "sliding_window": null, "layer_types": null,
    "rope_theta": 10000.0, "rope_parameters": null, "rope_scaling": null,
    "partial_rotary_factor": 1.0, "tie_word_embeddings": false, "pad_token_id": null,
    "eos_token_id": 2, "pruned_heads": {}
  },
  "mistral": {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": null, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "attention_bias": false,
    "mlp_bias": false, "attention_dropout": 0.0, "sliding_window": 4096, "layer_types": null,
    "rope_theta": 10000.0, "rope_parameters": null, "rope_scaling": null,
    "partial_rotary_factor": 1.0, "tie_word_embeddings": false, "pad_token_id": null,
    "eos_token_id": 2, "pruned_heads": {}
  },
  "qwen2": {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": null, "hidden_act": "silu",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "attention_bias": false,
    "mlp_bias": false, "attention_dropout": 0.0, "use_sliding_window": false,
    "sliding_window": 4096, "max_window_layers": 28, "layer_types": null, "rope_theta": 10000.0,
    "rope_parameters": null, "rope_scaling": null, "partial_rotary_factor": 1.0,
    "tie_word_embeddings": false, "pad_token_id": null, "eos_token_id": null, "pruned_heads": {}
  },
  "qwen3": {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "attention_bias": false,
    "mlp_bias": false, "attention_dropout": 0.0, "use_sliding_window": false,
    "sliding_window": 4096, "max_window_layers": 28, "layer_types": null, "rope_theta": 10000.0,
    "rope_parameters": null, "rope_scaling": null, "partial_rotary_factor": 1.0,
    "tie_word_embeddings": false, "pad_token_id": null, "eos_token_id": null, "pruned_heads": {}
  },
  "bert": {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "classifier_dropout": null,
    "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute", "is_decoder": false, "add_cross_attention": false,
    "tie_word_embeddings": true, "id2label": null, "num_labels": 2, "problem_type": null,
    "pad_token_id": 0, "eos_token_id": null, "pruned_heads": {}
  },
  "vit": {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12, "image_size": 224,
    "patch_size": 16, "num_channels": 3, "qkv_bias": true, "id2label": null, "num_labels": 2,
    "problem_type": null, "eos_token_id": null, "pruned_heads": {}
  },
  "marian": {
    "vocab_size": 58101, "decoder_vocab_size": null, "max_position_embeddings": 1024,
    "encoder_layers": 12, "encoder_ffn_dim": 4096, "encoder_attention_heads": 16,
    "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "activation_function": "gelu",
    "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "scale_embedding": false, "share_encoder_decoder_embeddings": true,
    "tie_word_embeddings": true, "decoder_start_token_id": 58100, "pad_token_id": 58100,
    "eos_token_id": 0, "pruned_heads": {}
  }
})";

constexpr const char* kOtherNames = R"({
  "gpt2": {"hidden_size": "n_embd", "max_position_embeddings": "n_positions",
           "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
  "marian": {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",
             "num_hidden_layers": "encoder_layers"}
})";

const json& row(const json& table, const std::string& model_type) {
  static const json none = json::object();
  const auto found = table.find(model_type);
  return found == table.end() ? none : *found;
}

}  // namespace

const json& hugging_face_defaults(const std::string& model_type) {
  static const json table = json::parse(kDefaults);
  return row(table, model_type);
}

const json& hugging_face_other_names(const std::string& model_type) {
  static const json table = json::parse(kOtherNames);
  return row(table, model_type);
}

}  // namespace headlab
