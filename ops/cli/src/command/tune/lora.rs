//! Adapters as an argument.

use autobwd_models::Lora;

/// Adapters by their options, `r=8,alpha=16,targets=q_proj+v_proj,rslora`.
pub(super) fn lora(text: &str) -> Result<Lora, String> {
    let mut lora = Lora::new(8, &[]);
    for option in text.split(',').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let bad = || format!("`{option}` has no number");
        match key {
            "r" => lora.rank = value.parse().map_err(|_| bad())?,
            "alpha" => lora.alpha = value.parse().map_err(|_| bad())?,
            "targets" => lora.targets = names(value),
            "saved" => lora.saved_modules = names(value),
            "seed" => lora.seed = value.parse().map_err(|_| bad())?,
            "rslora" if value.is_empty() => lora.is_rank_stabilized = true,
            _ => {
                return Err(format!(
                    "`{option}`: known are `r`, `alpha`, `targets`, `saved`, `seed`, `rslora`"
                ));
            }
        }
    }
    Ok(lora)
}

fn names(value: &str) -> Vec<String> {
    value.split('+').filter(|name| !name.is_empty()).map(String::from).collect()
}
