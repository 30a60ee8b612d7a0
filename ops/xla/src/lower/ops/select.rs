//! Choices between tensors.

use autobwd_ops::select::{SelectInput, SelectOutput};

use super::prelude::*;

family!(SelectInput, SelectOutput);

/// Whether a mask of one integer or bool has that value.
fn is(mask: &Hlo, value: usize) -> Hlo {
    let mask = mask.reshape(&[]).convert(HloDType::I32);
    mask.equal(&mask.full_like(value as f64))
}

impl Lower for SelectInput<Hlo> {
    fn lower(&mut self) {
        let zeros = self.out.full_like(0.0);
        let each = self.x.iter().map(|x| x.as_ref().unwrap_or(&zeros));
        let last = zeros.clone();
        self.out = each.enumerate().fold(last, |out, (i, x)| is(&self.mask, i).select(x, &out));
    }
}
impl Lower for SelectOutput<Hlo> {
    fn lower(&mut self) {
        for (i, out) in self.out.iter_mut().enumerate() {
            if let Some(out) = out {
                *out = is(&self.mask, i).select(&self.x, &self.x.full_like(0.0));
            }
        }
    }
}
