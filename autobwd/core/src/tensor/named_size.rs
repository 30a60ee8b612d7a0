//! Sizes with names: polynomials of named dimensions, with quotients that are rounded down.
//!
//! A batch `B` or a length `T` is a number only when a program is planned. Until then, shape rules compute with the name:
//! `B*T*12`, `(T + 1)/2`. Sizes are equal if they are equal as polynomials. Each polynomial is stored once, in a table of
//! the process, so that a [`Dim`](super::Dim) is its index.

use super::Dim;
use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Write as _},
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

/// The most polynomials of a process; dimensions of later ones are unknown.
pub(super) const MOST_SIZES: usize = 1 << 16;
/// The longest text of a polynomial, in bytes; longer ones are unknown.
const LONGEST: usize = 200;
/// The most products of a sum, which bounds the work for a short text of many products of sums.
const MOST_TERMS: usize = 100;

/// A factor of a product.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Factor {
    Name(Arc<str>),
    /// A dividend and a divisor, as long as no other form is known.
    Quotient(Arc<Polynomial>, Arc<Polynomial>),
}

/// A sum of products of factors, which are sorted, with coefficients that are not 0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Polynomial(BTreeMap<Vec<Factor>, i64>);

impl Polynomial {
    pub(super) fn constant(n: i64) -> Polynomial {
        Polynomial::of(vec![], n)
    }

    /// A size with a name, which is not empty; backticks, which quote names in texts, become apostrophes.
    pub(super) fn named(name: &str) -> Polynomial {
        Polynomial::of(vec![Factor::Name(name.replace('`', "'").into())], 1)
    }

    fn of(factors: Vec<Factor>, coefficient: i64) -> Polynomial {
        Polynomial([(factors, coefficient)].into_iter().filter(|(_, n)| *n != 0).collect())
    }

    /// The number, if no name is in it.
    pub(super) fn number(&self) -> Option<i64> {
        match self.0.first_key_value() {
            None => Some(0),
            Some((factors, n)) => (self.0.len() == 1 && factors.is_empty()).then_some(*n),
        }
    }

    /// The name, if it is nothing but one.
    pub(super) fn name(&self) -> Option<&Arc<str>> {
        match self.0.first_key_value() {
            Some((factors, 1)) if self.0.len() == 1 => match &factors[..] {
                [Factor::Name(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// All names in it.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let names = |factor: &Factor| match factor {
            Factor::Name(name) => vec![name.clone()],
            Factor::Quotient(dividend, divisor) => [dividend.names(), divisor.names()].concat(),
        };
        self.0.keys().flatten().flat_map(names).collect()
    }

    /// The size where names have sizes, as dimensions.
    pub(super) fn at(&self, size: &dyn Fn(&str) -> Dim) -> Dim {
        let factor = |factor: &Factor| match factor {
            Factor::Name(name) => size(name),
            Factor::Quotient(dividend, divisor) => dividend.at(size) / divisor.at(size),
        };
        self.0.iter().fold(Dim::from(0), |sum, (factors, n)| {
            sum + factors.iter().fold(Dim::from(0) + *n, |product, name| product * factor(name))
        })
    }

    pub(super) fn sum(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut sum = self.clone();
        other.0.iter().try_for_each(|(factors, n)| sum.add(factors.clone(), *n))?;
        Some(sum)
    }

    pub(super) fn difference(&self, other: &Polynomial) -> Option<Polynomial> {
        self.sum(&other.product(&Polynomial::constant(-1))?)
    }

    pub(super) fn product(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut product = Polynomial::default();
        for (a, n) in &self.0 {
            for (b, m) in &other.0 {
                let mut factors = [&a[..], b].concat();
                factors.sort();
                product.add(factors, n.checked_mul(*m)?)?;
            }
        }
        Some(product)
    }

    /// The quotient, rounded down; `None` for a divisor that is not known to be positive.
    pub(super) fn quotient(&self, divisor: &Polynomial) -> Option<Polynomial> {
        if divisor.number().is_some_and(|n| n <= 0) {
            return None;
        }
        if let Some(exact) = self.exact_quotient(divisor) {
            return Some(exact);
        }
        // Multiples of the divisor leave the quotient.
        let (mut whole, mut rest) = (Polynomial::default(), self.clone());
        if let Some((of, m)) = divisor.leading().filter(|(_, m)| divisor.0.len() == 1 && *m > 0) {
            rest = Polynomial::default();
            for (factors, n) in &self.0 {
                let times = without(factors, of);
                rest.add(factors.clone(), if times.is_some() { n.rem_euclid(m) } else { *n })?;
                times.map_or(Some(()), |times| whole.add(times, n.div_euclid(m)))?;
            }
        }
        // What is less than a divisor that is a number vanishes.
        if rest.number() == Some(0) || (divisor.number().is_some() && rest.number().is_some()) {
            return Some(whole);
        }
        whole.add(vec![Factor::Quotient(rest.into(), divisor.clone().into())], 1)?;
        Some(whole)
    }

    /// The quotient by long division, if nothing remains.
    fn exact_quotient(&self, divisor: &Polynomial) -> Option<Polynomial> {
        let (leading, m) = divisor.leading()?;
        let (mut quotient, mut rest) = (Polynomial::default(), self.clone());
        for _ in 0..LONGEST {
            let Some((factors, n)) = rest.leading() else { return Some(quotient) };
            let term = Polynomial::of(without(factors, leading)?, n.checked_div(m).filter(|_| n % m == 0)?);
            rest = rest.difference(&term.product(divisor)?)?;
            quotient = quotient.sum(&term)?;
        }
        None
    }

    /// The term with the most factors.
    fn leading(&self) -> Option<(&[Factor], i64)> {
        let term = self.0.iter().max_by_key(|(factors, _)| (factors.len(), *factors))?;
        Some((term.0, *term.1))
    }

    fn add(&mut self, factors: Vec<Factor>, n: i64) -> Option<()> {
        let sum = self.0.get(&factors).copied().unwrap_or(0).checked_add(n)?;
        if sum == 0 {
            self.0.remove(&factors)
        } else {
            self.0.insert(factors, sum)
        };
        (self.0.len() <= MOST_TERMS).then_some(())
    }
}

/// The factors without others; `None` if one of these is missing.
fn without(factors: &[Factor], others: &[Factor]) -> Option<Vec<Factor>> {
    let mut left = factors.to_vec();
    for other in others {
        left.remove(left.iter().position(|factor| factor == other)?);
    }
    Some(left)
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operand = |of: &Polynomial| match of.is_atom() {
            true => of.to_string(),
            false => format!("({of})"),
        };
        match self {
            Factor::Name(name) if is_identifier(name) => f.write_str(name),
            Factor::Name(name) => write!(f, "`{name}`"),
            Factor::Quotient(dividend, divisor) => write!(f, "{}/{}", operand(dividend), operand(divisor)),
        }
    }
}

impl Polynomial {
    /// Whether it is a number or a name.
    fn is_atom(&self) -> bool {
        self.number().is_some() || self.name().is_some()
    }
}

impl fmt::Display for Polynomial {
    /// The products with the most factors first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut terms: Vec<_> = self.0.iter().collect();
        terms.sort_by_key(|(factors, _)| std::cmp::Reverse(factors.len()));
        if terms.is_empty() {
            return f.write_char('0');
        }
        for (i, (factors, n)) in terms.into_iter().enumerate() {
            match (i, *n < 0) {
                (0, true) => f.write_char('-')?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let is_product = factors.len() > 1 || n.unsigned_abs() != 1;
            let factor = |factor: &Factor| match factor {
                Factor::Quotient(..) if is_product => format!("({factor})"),
                _ => factor.to_string(),
            };
            let number = (n.unsigned_abs() != 1 || factors.is_empty()).then(|| n.unsigned_abs().to_string());
            let product: Vec<String> = factors.iter().map(factor).chain(number).collect();
            f.write_str(&product.join("*"))?;
        }
        Ok(())
    }
}

/// Whether a name needs no backticks in a text: letters, digits, `_` and `.`, no digit first.
fn is_identifier(name: &str) -> bool {
    let is_letter = |c: char| c.is_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit() || c == '.')
}

/// All polynomials of the process.
#[derive(Default)]
struct Table {
    indices: HashMap<Arc<Polynomial>, usize>,
    sizes: Vec<Arc<Polynomial>>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// The index of a polynomial; `None` if it is too long or the table is full.
pub(super) fn index(size: Polynomial) -> Option<usize> {
    let known = TABLE.read().unwrap_or_else(PoisonError::into_inner).indices.get(&size).copied();
    if known.is_some() || size.to_string().len() > LONGEST {
        return known;
    }
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(index) = table.indices.get(&size) {
        return Some(*index);
    }
    let index = table.sizes.len();
    if index == MOST_SIZES {
        return None;
    }
    let size = Arc::new(size);
    table.indices.insert(size.clone(), index);
    table.sizes.push(size);
    Some(index)
}

/// The polynomial of an index.
pub(super) fn size(index: usize) -> Option<Arc<Polynomial>> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner).sizes.get(index).cloned()
}

/// A polynomial from its text: numbers and names, `+ - * /` and parentheses; names that are not identifiers stand in
/// backticks.
pub(super) fn parse(text: &str) -> Option<Polynomial> {
    if text.len() > LONGEST {
        return None;
    }
    let mut parser = Parser { left: text };
    let size = parser.sum()?;
    parser.left.trim_start().is_empty().then_some(size)
}

struct Parser<'a> {
    /// At most [`LONGEST`] bytes, which bounds the depth of parentheses.
    left: &'a str,
}

impl Parser<'_> {
    fn sum(&mut self) -> Option<Polynomial> {
        let mut sum = if self.takes('-') {
            Polynomial::default().difference(&self.product()?)?
        } else {
            self.product()?
        };
        loop {
            sum = match (self.takes('+'), self.takes('-')) {
                (true, _) => sum.sum(&self.product()?)?,
                (_, true) => sum.difference(&self.product()?)?,
                _ => return Some(sum),
            };
        }
    }

    fn product(&mut self) -> Option<Polynomial> {
        let mut product = self.factor()?;
        loop {
            product = match (self.takes('*'), self.takes('/')) {
                (true, _) => product.product(&self.factor()?)?,
                (_, true) => {
                    // Python's sign of a quotient that is rounded down.
                    self.takes('/');
                    product.quotient(&self.factor()?)?
                }
                _ => return Some(product),
            };
        }
    }

    fn factor(&mut self) -> Option<Polynomial> {
        if self.takes('(') {
            let inner = self.sum()?;
            return self.takes(')').then_some(inner);
        }
        if self.takes('`') {
            let (name, left) = self.left.split_once('`').filter(|(name, _)| !name.is_empty())?;
            self.left = left;
            return Some(Polynomial::named(name));
        }
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
        let (word, left) = self.left.split_at(self.left.find(|c| !is_part(c)).unwrap_or(self.left.len()));
        self.left = left;
        match word.parse() {
            Ok(n) => Some(Polynomial::constant(n)),
            Err(_) => is_identifier(word).then(|| Polynomial::named(word)),
        }
    }

    fn takes(&mut self, c: char) -> bool {
        self.left = self.left.trim_start();
        let after = self.left.strip_prefix(c);
        self.left = after.unwrap_or(self.left);
        after.is_some()
    }
}
