"""What strangers type, for `evaluate` alone: the corpus uses no word, asks no question and has no sentence of these.

The corpus writes held-out questions of its own with another seed, which tells what the model remembers. Whether it
copies words, admits ignorance and notices other languages must be asked with material that it never read.
"""

from random import Random

from .corpus import copying, languages, unknown
from .corpus.words import entries

WORDS = """
abacus acorn actor adobe agile album alley almond alpine amber anchor antler apron arcade arrow atlas bagel ballad
bamboo banjo barrel basil beacon bishop blender blossom bonnet boulder bracket breeze brisk bronze bubble buffalo
bugle bundle burger cabin cactus camel canal cannon canoe canvas caramel cargo cashew casino cedar cello chalk
charcoal cheetah chimney chisel cider cinema citrus cliff cobra coconut comet coral cosmic cottage cougar cradle
crater cricket crimson crumb crystal curtain cushion cymbal dagger dairy debut decoy denim dentist diesel
dinner disco dolphin domino donut drill dryer dune eclipse elbow elegant elk elm ember emblem empire enamel envoy
epoch equator escape exotic fable fabric falcon famine fancy fiddle fjord flannel fleet flint fossil fragile freight
frost funnel galaxy gallon gamma garlic gazebo gecko geyser ghost giraffe glacier glide globe glove gossip granite
grape gravel gravity guava gypsum habit hamlet harp hazard helix herb hermit hippo hockey hornet hybrid icon igloo
impulse incense indigo ink insect iris jacket jaguar jasmine jelly jigsaw jockey jungle juniper karate kayak kelp
kimono kiosk kiwi koala lagoon laser latch lava lavender ledger legend lever lilac limbo linen llama
lobster lotus lunar lyric magnet mammoth mango maple marble margin marsh mascot maze melon mentor meteor mimic mint
mosaic motor muffin museum mustard myth navy nebula nectar ninja nomad nougat nylon oasis oboe octopus onyx
opal opera orbit orchid oregano oxide oyster paddle pagoda panda panther parade parrot patio peanut pelvis peony
perfume petal piano pickle pigment pixel pizza plasma plaza plywood polka poncho poplar portal prism proxy puddle
puma puppet pyramid quartz quiche quill quilt radar radish raven razor rebel relic rhino ridge riot ritual robin
rodeo rogue rotor rubber rugby rustic safari saffron salad salmon salsa sandal satin sauna scarab scooter scroll
sequel shampoo sherbet shrimp siren skate sketch sleet sloth socket sonar sonic spark spinach sponge squid stadium
stapler stucco sultan summit sushi swamp syrup tablet taco talent tango tattoo tempo tennis terrace texture thistle
thyme tiara toffee topaz torch tractor trapeze trident trophy trumpet tulip tundra turban turbo turnip tuxedo twig
ukulele ultra umpire unicorn urban utopia vacuum vapor vault velcro venom vertex viking vinyl viola virus visor
vodka volcano voyage vulture waffle walnut walrus wasabi wicker widget wigwam wombat xylophone yacht yoga yogurt
zealot zenith zeppelin zigzag zombie
""".split()

QUESTIONS = entries("""
Who painted the Mona Lisa?|Who wrote Romeo and Juliet?|How do airplanes fly?|What is photosynthesis?
What is quantum physics?|Why is the sea salty?|Who was Albert Einstein?|Who was Cleopatra?
What is the speed of light?|When did the Titanic sink?|How many bones are in the human body?
What is the tallest mountain on Earth?|What causes thunder?|How do vaccines work?
Who was the first person on the Moon?|When did World War Two end?|What is inflation?|Who is Taylor Swift?
What is bitcoin?|How do I bake a chocolate cake?|How do I tie a tie?|Where can I buy cheap flights?
What is the stock price of Apple?|Who discovered penicillin?|What is the boiling point of water?
How far away is the Moon?|What is the deepest lake?|What should I cook for dinner tonight?|Is coffee healthy?
How can I lose weight?|Why do we sleep?|What are black holes?|Who won the election?|What is the best phone?
Which football club is the best?|What is the capital of Sri Lanka?|What is the capital of Andorra?
What is the capital of the Bahamas?|What is the capital of Wakanda?|What is the capital of Barbados?
What is the currency of Malaysia?|Which language do people speak in Ethiopia?|What is the main language of Nepal?
What is the opposite of giraffe?|What is the opposite of piano?|What is a young giraffe called?
What is a young hippo called?|What sound does a giraffe make?|Where does a panda live?
How many legs does an octopus have?|What colour is a panda?|What is the chemical symbol for pizza?
Explain photosynthesis in one sentence.|Explain gravity in one sentence.|Explain democracy in one sentence.
What is a blockchain?|What does osmosis mean?|Define entropy.|Why does recycling matter?|What is 347 times 28?
What is 1234 + 8765?|What is 9000 divided by 45?|What is 512 - 377?|How much is 77 plus 88?
Write a haiku about autumn.|Write a Python function that reverses a string.|Tell me a joke about lawyers.
Sing a song.|Recommend a good movie.|Plan a trip to Venice.|What is my favourite food?|When is my birthday?
Who am I?|What is your age?|What is the weather today?|How is the traffic in London?|What is the latest news?
Set an alarm for six.|Turn on the light.|Who is the president of the United States?
Who is the prime minister of Canada?|Who is the queen of England?|How many people live in Tokyo?
What is the population of India?|How big is Russia?|Which river flows through Vienna?|What is the fastest car?
How long do elephants live?|What do koalas eat?|Do fish sleep?|Can penguins fly?|How does a computer work?
How does the internet work?|What is the meaning of the word serendipity?|What is jazz?|Summarize Hamlet.
What happens in the movie Titanic?|Who played James Bond?|Which planet has rings of ice?
""")

SENTENCES = entries("""
Wo ist der Bahnhof?|Bitte erkläre mir die Photosynthese.|Heute scheint die Sonne.|Welche Farbe hat dein Auto?
Où est la gare ?|Explique-moi la photosynthèse.|Quel temps fait-il aujourd'hui ?|Je ne comprends rien.
¿Dónde está la estación?|Explícame la fotosíntesis.|Hoy hace mucho calor.|¿De qué color es tu coche?
Dov'è la stazione?|Spiegami la fotosintesi.|Oggi fa molto caldo.|Di che colore è la tua macchina?
Onde fica a estação?|Hoje faz muito calor.|Explique a fotossíntese.|De que cor é o seu carro?|Waar is het station?
Vandaag schijnt de zon.|Welke kleur heeft jouw auto?|Leg fotosynthese uit.|Var ligger stationen?|Idag skiner solen.
Vilken färg har din bil?|Jag förstår ingenting.|Gdzie jest dworzec?|Dzisiaj świeci słońce.
Jaki kolor ma twój samochód?|Nic nie rozumiem.|İstasyon nerede?|Bugün hava çok sıcak.|Araban ne renk?
Hiçbir şey anlamıyorum.|Где находится вокзал?|Сегодня светит солнце.|Какого цвета твоя машина?|Я ничего не понимаю.
Де знаходиться вокзал?|Сьогодні світить сонце.|Якого кольору твоя машина?|Πού είναι ο σταθμός;
Σήμερα έχει πολλή ζέστη.|Τι χρώμα έχει το αυτοκίνητό σου;|车站在哪里?|今天天气很好。|你的汽车是什么颜色?
我什么都不懂。|駅はどこですか?|今日は暑いです。|車は何色ですか?|何も分かりません。|역이 어디에 있어요?
오늘은 날씨가 더워요.|자동차는 무슨 색이에요?|أين المحطة؟|الطقس حار اليوم.|ما لون سيارتك؟|स्टेशन कहाँ है?
आज बहुत गर्मी है।|तुम्हारी गाड़ी का रंग क्या है?|Kde je nádraží?|Jaké je hlavní město Francie?
Hvor ligger stationen?|Hvad hedder du?|Missä on rautatieasema?|Mikä sinun nimesi on?|Hol van a pályaudvar?
Hogy hívnak?|Unde este gara?|Cum te cheamă?|Di mana stasiun kereta?|Siapa nama kamu?|Ga ở đâu?
""")


def copies(rng: Random) -> tuple[str, str]:
    """5 to 60 words that the model never read, each length equally often; now and then a number among them."""
    pool = WORDS if rng.random() < 0.8 else rng.sample(WORDS, 20)  # one in five repeats its words
    picked = [copying.digits(rng) if rng.random() < 0.1 else rng.choice(pool) for _ in range(rng.randint(5, 60))]
    text = " ".join(picked)
    return rng.choice(copying.REQUESTS[:4]).format(text), text


def strings(rng: Random) -> tuple[str, str]:
    """1 to 20 numbers, code-like strings or pairs."""

    def pair(rng: Random) -> str:
        return f"{rng.choice(WORDS)}: {copying.digits(rng)}"

    kind = rng.choice((copying.digits, copying.figure, copying.string, pair))
    text = rng.choice((" ", ", ", "\n")).join(kind(rng) for _ in range(rng.randint(1, 20)))
    return rng.choice(copying.REQUESTS[:4]).format(text), text


def unanswered(rng: Random) -> tuple[str, str]:
    return rng.choice(QUESTIONS), unknown.ANSWER


def foreign(rng: Random) -> tuple[str, str]:
    return rng.choice(SENTENCES), languages.ANSWER
