//! Adapters as an argument.

use autobwd_models::Lora;

/// Adapters by their options, `r=8,alpha=16,targets=q_proj+v_proj,rslora`.
pub(super) fn lora(text: &str) -> Result<Lora, String> {
    let mut lora = Lora::new(8, &[]);
    let mut rest = text;
    while !rest.is_empty() {
        // A regular expression may have commas.
        if let Some(pattern) = rest.strip_prefix("pattern=") {
            lora.pattern = Some(pattern.into());
            break;
        }
        let (option, others) = rest.split_once(',').unwrap_or((rest, ""));
        if !option.is_empty() {
            set(&mut lora, option)?;
        }
        rest = others;
    }
    Ok(lora)
}

fn set(lora: &mut Lora, option: &str) -> Result<(), String> {
    let (key, value) = option.split_once('=').unwrap_or((option, ""));
    let bad = || format!("`{option}` has no number");
    match key {
        "r" => lora.rank = value.parse().map_err(|_| bad())?,
        "alpha" => lora.alpha = value.parse().map_err(|_| bad())?,
        "dropout" => lora.dropout = value.parse().map_err(|_| bad())?,
        "targets" => lora.targets = names(value),
        "exclude" => lora.excluded = names(value),
        "layers" => {
            lora.layers = layers(value).ok_or_else(|| format!("`{option}` has no numbers of layers"))?
        }
        "saved" => lora.saved_modules = names(value),
        "seed" => lora.seed = value.parse().map_err(|_| bad())?,
        "rslora" if value.is_empty() => lora.is_rank_stabilized = true,
        _ => {
            return Err(format!(
                "`{option}`: known are `r`, `alpha`, `dropout`, `targets`, `exclude`, `layers`, `saved`, `seed`, `rslora`, \
                 `pattern`"
            ));
        }
    }
    Ok(())
}

fn names(value: &str) -> Vec<String> {
    value.split('+').filter(|name| !name.is_empty()).map(String::from).collect()
}

/// Numbers of layers: `0+1+5`, or a range with both ends, `0-5`.
fn layers(value: &str) -> Option<Vec<usize>> {
    let mut layers = vec![];
    for part in names(value) {
        let (first, last) = part.split_once('-').unwrap_or((&part, &part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last.checked_sub(first)? > 1_000 {
            return None;
        }
        layers.extend(first..=last);
    }
    (!layers.is_empty()).then_some(layers)
}
