//! The names of tensors: those of `ggml` (`gguf-py/gguf/constants.py`), and those of Hugging Face.

/// Parts of a layer, in both forms, for all architectures.
const PARTS: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The factors of rotary frequencies, which are part of the configuration elsewhere.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The name of a tensor in the layout of Hugging Face, if it has one.
pub(super) fn published(name: &str, is_gemma: bool) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output_norm.weight" => return Some("model.norm.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
    let own = match (part, is_gemma) {
        // The norm before the gated layer, which other families name by its place after the attention.
        ("ffn_norm", true) => "pre_feedforward_layernorm",
        ("ffn_norm", false) => "post_attention_layernorm",
        ("post_ffw_norm", true) => "post_feedforward_layernorm",
        ("post_attention_norm", false) => return None,
        _ => PARTS.iter().find(|(known, _)| *known == part)?.1,
    };
    Some(format!("model.layers.{layer}.{own}.{kind}"))
}
