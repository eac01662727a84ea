"""Writes questions in other languages than English, which all have one answer.

The model has read no other language, but byte-level tokens spell any, and a handful of sentences in each shows how
it looks. The answer is the same for all of them, because the model cannot tell what it was asked.
"""

from random import Random

from .render import dialogue
from .words import FIRST_NAMES, entries, town

ANSWER = "I know only English."

# A paragraph for each language; {t} is a town, {n} a first name, {d} a number.
_SENTENCES = """
Wie heißt du?|Was ist die Hauptstadt von {t}?|Wo wohnt {n}?|Kannst du mir bitte helfen?
Erzähl mir eine Geschichte.|Wie viel ist {d} plus {d}?|Wer bist du?|Guten Morgen, wie geht es dir?
Was kostet das?|Ich möchte nach {t} fahren.|Warum ist der Himmel blau?|Schreibe einen Brief an {n}.
Was bedeutet dieses Wort?|Ich habe {d} Bücher und {n} hat keine.|Sprichst du Deutsch?

Comment tu t'appelles ?|Quelle est la capitale de {t} ?|Où habite {n} ?|Peux-tu m'aider, s'il te plaît ?
Raconte-moi une histoire.|Combien font {d} plus {d} ?|Qui es-tu ?|Bonjour, comment ça va ?
Je voudrais aller à {t}.|Pourquoi le ciel est-il bleu ?|Écris une lettre à {n}.|Que veut dire ce mot ?
J'ai {d} livres et {n} n'en a pas.|Parlez-vous français ?|Merci beaucoup, mon ami.

¿Cómo te llamas?|¿Cuál es la capital de {t}?|¿Dónde vive {n}?|¿Puedes ayudarme, por favor?
Cuéntame una historia.|¿Cuánto es {d} más {d}?|¿Quién eres?|Buenos días, ¿cómo estás?|Quiero viajar a {t}.
¿Por qué el cielo es azul?|Escribe una carta para {n}.|¿Qué significa esta palabra?
Tengo {d} libros y {n} no tiene ninguno.|¿Hablas español?|Muchas gracias, amigo.

Come ti chiami?|Qual è la capitale di {t}?|Dove abita {n}?|Puoi aiutarmi, per favore?|Raccontami una storia.
Quanto fa {d} più {d}?|Chi sei?|Buongiorno, come stai?|Vorrei andare a {t}.|Perché il cielo è blu?
Scrivi una lettera a {n}.|Che cosa significa questa parola?|Ho {d} libri e {n} non ne ha.|Parli italiano?

Como você se chama?|Qual é a capital de {t}?|Onde mora {n}?|Você pode me ajudar, por favor?|Conte uma história.
Quanto é {d} mais {d}?|Quem é você?|Bom dia, como vai?|Quero viajar para {t}.|Por que o céu é azul?
Escreva uma carta para {n}.|O que significa esta palavra?|Tenho {d} livros e {n} não tem nenhum.
Você fala português?

Hoe heet je?|Wat is de hoofdstad van {t}?|Waar woont {n}?|Kun je mij helpen, alsjeblieft?|Vertel me een verhaal.
Hoeveel is {d} plus {d}?|Wie ben jij?|Goedemorgen, hoe gaat het?|Ik wil naar {t} reizen.
Waarom is de lucht blauw?|Schrijf een brief aan {n}.|Wat betekent dit woord?|Spreek je Nederlands?

Vad heter du?|Vad är huvudstaden i {t}?|Var bor {n}?|Kan du hjälpa mig?|Berätta en saga för mig.
Hur mycket är {d} plus {d}?|Vem är du?|God morgon, hur mår du?|Jag vill resa till {t}.|Varför är himlen blå?
Skriv ett brev till {n}.|Vad betyder det här ordet?|Talar du svenska?

Jak masz na imię?|Co jest stolicą {t}?|Gdzie mieszka {n}?|Czy możesz mi pomóc?|Opowiedz mi bajkę.
Ile to jest {d} plus {d}?|Kim jesteś?|Dzień dobry, jak się masz?|Chcę pojechać do {t}.
Dlaczego niebo jest niebieskie?|Napisz list do {n}.|Co znaczy to słowo?|Czy mówisz po polsku?

Adın ne?|{t} ülkesinin başkenti neresi?|{n} nerede yaşıyor?|Bana yardım edebilir misin?|Bana bir hikaye anlat.
{d} artı {d} kaç eder?|Sen kimsin?|Günaydın, nasılsın?|Gökyüzü neden mavi?|Bu kelime ne demek?
Türkçe biliyor musun?

Как тебя зовут?|Какая столица страны {t}?|Где живёт {n}?|Помоги мне, пожалуйста.|Расскажи мне сказку.
Сколько будет {d} плюс {d}?|Кто ты?|Доброе утро, как дела?|Почему небо голубое?|Что значит это слово?
Напиши письмо для {n}.|Ты говоришь по-русски?

Як тебе звати?|Де живе {n}?|Допоможи мені, будь ласка.|Розкажи мені казку.|Скільки буде {d} плюс {d}?|Хто ти?
Доброго ранку, як справи?|Чому небо блакитне?|Що означає це слово?

Πώς σε λένε;|Ποια είναι η πρωτεύουσα της χώρας {t};|Πού μένει {n};|Μπορείς να με βοηθήσεις;|Πες μου μια ιστορία.
Πόσο κάνει {d} και {d};|Ποιος είσαι;|Καλημέρα, τι κάνεις;|Γιατί είναι μπλε ο ουρανός;

你叫什么名字?|{t}的首都是哪里?|你能帮我吗?|给我讲一个故事。|{d}加{d}等于多少?|你是谁?|早上好,你好吗?
天空为什么是蓝色的?|这个词是什么意思?|我想去{t}。|请写一封信给{n}。

あなたの名前は何ですか?|{t}の首都はどこですか?|手伝ってくれますか?|物語を話してください。
{d}たす{d}はいくつですか?|あなたは誰ですか?|おはようございます。|空はなぜ青いのですか?|この言葉の意味は何ですか?
{n}に手紙を書いてください。

이름이 뭐예요?|{t}의 수도는 어디입니까?|도와줄 수 있어요?|이야기를 해 주세요.|{d} 더하기 {d}는 얼마입니까?
당신은 누구입니까?|안녕하세요, 잘 지내세요?|하늘은 왜 파란가요?|이 단어는 무슨 뜻이에요?

ما اسمك؟|ما هي عاصمة {t}؟|أين يسكن {n}؟|هل يمكنك مساعدتي؟|احك لي قصة.|كم يساوي {d} زائد {d}؟|من أنت؟
صباح الخير، كيف حالك؟|لماذا السماء زرقاء؟|ماذا تعني هذه الكلمة؟

तुम्हारा नाम क्या है?|{t} की राजधानी क्या है?|{n} कहाँ रहता है?|क्या आप मेरी मदद कर सकते हैं?
मुझे एक कहानी सुनाओ।|{d} और {d} कितने होते हैं?|आप कौन हैं?|नमस्ते, आप कैसे हैं?|आकाश नीला क्यों है?
"""
LANGUAGES = [entries(paragraph) for paragraph in _SENTENCES.split("\n\n")]
_REQUESTS = (
    "Do you speak {l}?",
    "Can you speak {l}?",
    "Say something in {l}.",
    "Translate this into {l}: {s}",
    "What is {s} in {l}?",
    "Please answer in {l}.",
)
_NAMES = "German French Spanish Italian Portuguese Dutch Swedish Polish Turkish Russian Greek Chinese Japanese".split()
_SAYINGS = ("good morning", "thank you", "water", "the house", "I am hungry", "the book is red", "yes", "my friend")


def sentence(rng: Random) -> str:
    """Return one sentence, in any of the languages."""
    template = rng.choice(rng.choice(LANGUAGES))
    return template.format(t=town(rng), n=rng.choice(FIRST_NAMES), d=rng.randint(1, 99))


def exchange(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.1:
        return rng.choice(_REQUESTS).format(l=rng.choice(_NAMES), s=rng.choice(_SAYINGS)), ANSWER
    asked = sentence(rng)
    if rng.random() < 0.15:
        asked = f"{asked} {sentence(rng)}"
    return asked.rstrip(".?。") if rng.random() < 0.15 else asked, ANSWER


def talk(rng: Random) -> str:
    return dialogue(rng, *exchange(rng))
