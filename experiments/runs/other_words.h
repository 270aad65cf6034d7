// What other tools call the settings of an experiment.
#pragma once

#include <string_view>
#include <utility>

namespace headlab {

// A word of nanoGPT, Hugging Face, PyTorch or TransformerLens, and where its setting stands here.
inline constexpr std::pair<std::string_view, std::string_view> kOtherWords[] = {
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"depth", "model.layers"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_heads", "model.heads"},
    {"nhead", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"n_kv_head", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"n_embd", "model.d_model"},
    {"n_embed", "model.d_model"},
    {"embed_dim", "model.d_model"},
    {"hidden_size", "model.d_model"},
    {"dim", "model.d_model"},
    {"d_head", "model.head_dim"},
    {"head_size", "model.head_dim"},
    {"attn_pdrop", "model.attention_dropout"},
    {"resid_pdrop", "model.dropout"},
    {"tie_word_embeddings", "model.tie"},
    {"block_size", "data.context"},
    {"context_length", "data.context"},
    {"seq_len", "data.context"},
    {"seq_length", "data.context"},
    {"max_length", "data.context"},
    {"n_ctx", "data.context"},
    {"n_positions", "data.context"},
    {"dataset", "data.path"},
    {"file", "data.path"},
    {"text", "data.path"},
    {"max_iters", "train.steps"},
    {"max_steps", "train.steps"},
    {"num_steps", "train.steps"},
    {"iterations", "train.steps"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"batch_size", "train.batch"},
    {"gradient_accumulation_steps", "train.accumulate"},
    {"learning_rate", "train.lr"},
    {"lr_scheduler_type", "train.schedule"},
    {"lr_decay_iters", "train.decay_steps"},
    {"warmup_iters", "train.warmup"},
    {"warmup_steps", "train.warmup"},
    {"grad_clip", "train.clip"},
    {"max_grad_norm", "train.clip"},
    {"beta1", "train.betas"},
    {"beta2", "train.betas"},
    {"eval_interval", "train.eval_every"},
    {"eval_steps", "train.eval_every"},
    {"eval_iters", "train.eval_batches"},
    {"save_steps", "train.checkpoint.every"},
    {"log_interval", "log.every"},
    {"logging_steps", "log.every"},
};

}  // namespace headlab
