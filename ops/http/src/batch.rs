//! Batches: rows of several requests in one run.

use autobwd::{Result, Tensor};

/// Whether two requests can be rows of one batch: all their tensors have rows of one dtype and shape, and as many rows as
/// the other tensors of the request.
pub(crate) fn fit(some: &[Tensor], others: &[Tensor]) -> bool {
    let have_rows = |tensors: &[Tensor]| rows(tensors).is_some();
    let of_one_kind = |(a, b): (&Tensor, &Tensor)| a.dtype() == b.dtype() && a.dims()[1..] == b.dims()[1..];
    have_rows(some) && have_rows(others) && some.iter().zip(others).all(of_one_kind)
}

/// The number of rows that all these tensors have.
pub(crate) fn rows(tensors: &[Tensor]) -> Option<usize> {
    let count = *tensors.first()?.dims().first()?;
    tensors.iter().all(|tensor| tensor.dims().first() == Some(&count)).then_some(count)
}

/// The rows of several requests that [`fit`], input by input.
///
/// # Errors
/// Memory runs out.
pub(crate) fn join(requests: &[&[Tensor]]) -> Result<Vec<Tensor>> {
    let Some(first) = requests.first() else { return Ok(vec![]) };
    let joined = first.iter().enumerate().map(|(input, first)| {
        let parts: Vec<&Tensor> = requests.iter().filter_map(|request| request.get(input)).collect();
        let mut dims = first.dims().to_vec();
        dims[0] = parts.iter().map(|part| part.dims()[0]).sum();
        let mut joined = Tensor::zeros(first.dtype(), &dims)?;
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes()).copied().collect();
        joined.bytes_mut().copy_from_slice(&bytes);
        Ok(joined)
    });
    joined.collect()
}

/// The outputs of each request, which has so many rows; `None` if the outputs have other rows.
///
/// # Errors
/// Memory runs out.
pub(crate) fn split(outputs: &[Tensor], counts: &[usize]) -> Result<Option<Vec<Vec<Tensor>>>> {
    if rows(outputs) != Some(counts.iter().sum()) {
        return Ok(None);
    }
    let mut start = 0;
    let parts = counts.iter().map(|count| {
        let end = start + count;
        let part = outputs.iter().map(|output| {
            let mut dims = output.dims().to_vec();
            let row_bytes = dims[1..].iter().product::<usize>() * output.dtype().size();
            dims[0] = *count;
            let mut part = Tensor::zeros(output.dtype(), &dims)?;
            part.bytes_mut().copy_from_slice(&output.bytes()[start * row_bytes..end * row_bytes]);
            Ok(part)
        });
        let part = part.collect::<Result<Vec<_>>>();
        start = end;
        part
    });
    parts.collect::<Result<_>>().map(Some)
}
