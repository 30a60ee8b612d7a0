//! Loops during constant evaluation.

/// A `for` loop over a slice, which constant functions lack; the second form counts the elements.
macro_rules! const_for {
    ($element:ident in $slice:expr => $body:block) => {
        crate::schema::const_for!(_index, $element in $slice => $body)
    };
    ($index:ident, $element:ident in $slice:expr => $body:block) => {{
        let slice: &[_] = $slice;
        let mut next = 0;
        while next < slice.len() {
            let ($index, $element) = (next, &slice[next]);
            next += 1;
            $body
        }
    }};
}
pub(crate) use const_for;
